"""Pairwise testing: tables in which every pair of two factors' values occurs.

Most faults need two options in combination, few need three. Ten options of four values have a
million combinations; about 25 rows contain every pair.

Many solutions support only a subset of the rows, such as contiguous inputs. If a table names that
subset, every pair also occurs within the subset. allpairspy and PICT cannot do this: their
constraints hold for the whole table.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Generic

from common.spec import C

Factors = Mapping[str, Sequence[Any]]
"""The values of each factor: `{"dtype": ("float32", "float16"), "interleaved": (False, True)}`."""
Row = dict[str, Any]
"""A value for each factor, or for some of the factors."""
CANDIDATES = 6
"""Candidate rows for each added row; more candidates hardly shorten a table."""


@dataclass(frozen=True, eq=False)
class PairTable(Generic[C]):
    """An op's options, of which every possible pair of values occurs in a case."""

    factors: Factors
    make: Callable[..., C]
    """Return the case with the values of a row."""
    subsets: Sequence[Factors] = ()
    """Values to which many solutions are limited; their pairs also occur among these values."""
    possible: Callable[[Row], bool] = lambda row: True
    """Whether values of some factors can be combined; each factor has a value that always can."""

    def cases(self) -> Iterator[C]:
        """Yield the case of each row."""
        return (self.make(**row) for row in self.rows)

    @functools.cached_property
    def rows(self) -> Sequence[Row]:
        """The rows, in which every possible pair of values occurs, also within each subset.

        For a pair that no row contains yet, draw several rows with that pair, adding the other
        factors in random order, and keep the row with the most new pairs. The generator is seeded,
        so that the table is reproducible.
        """
        rng = random.Random(0)
        rows: list[Row] = []
        within = [restricted(self.factors, subset) for subset in (*self.subsets, {})]
        # the pairs of each subset that no row contains yet
        missing = [
            {frozenset(pair) for pair in all_pairs(values) if self.possible(dict(pair))}
            for values in within
        ]

        def holding(row: Row) -> list[set[frozenset[Any]]]:
            """Return the missing pairs of each subset that has the row's values."""
            return [pairs for values, pairs in zip(within, missing, strict=True)
                    if all(value in values[name] for name, value in row.items())]  # fmt: skip

        def completed(row: Row, values: Factors) -> Row:
            """Add each other factor with the value that gives the row most new pairs."""
            for name in rng.sample([*values], len(values)):
                if name not in row:
                    held, gains = holding(row), []
                    for value in values[name]:
                        if self.possible({**row, name: value}):
                            added = {frozenset(((name, value), other)) for other in row.items()}
                            gain = sum(len(added & pairs) for pairs in held)
                            gains.append((gain, rng.random(), value))
                    row[name] = max(gains)[-1]
            return {name: row[name] for name in values}

        def new_pairs(row: Row) -> int:
            return sum(len(pairs & pairs_of(row)) for pairs in holding(row))

        for values, pairs in zip(within, missing, strict=True):
            for pair in all_pairs(values):
                if frozenset(pair) in pairs:
                    drawn = [completed(dict(pair), values) for _ in range(CANDIDATES)]
                    rows.append(max(drawn, key=new_pairs))
                    for held in holding(rows[-1]):
                        held -= pairs_of(rows[-1])
        return rows


def pairs_of(row: Row) -> set[frozenset[Any]]:
    """Return every pair of two factors' values in a row."""
    return {frozenset(pair) for pair in combinations(row.items(), 2)}


def restricted(factors: Factors, subset: Factors) -> Factors:
    """Return the factors, with only the subset's values where the subset names the factor."""
    return {
        name: tuple(value for value in values if value in subset.get(name, values))
        for name, values in factors.items()
    }


def all_pairs(factors: Factors) -> Iterator[tuple[tuple[str, Any], tuple[str, Any]]]:
    """Yield every pair of two factors' values, impossible ones too."""
    for first, second in combinations(factors, 2):
        for value in factors[first]:
            yield from (((first, value), (second, other)) for other in factors[second])
