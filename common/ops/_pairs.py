"""Pairwise testing: tables in which every pair of two factors' values occurs.

Most faults need two options in combination, few need three. Ten options of four values have a
million combinations; about 25 rows contain every pair.

Many solutions support only a subset of the rows, such as contiguous inputs. If a table names that
subset, every pair also occurs within the subset. allpairspy and PICT cannot do this: their
constraints hold for the whole table.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from itertools import combinations, permutations
from typing import Any

from common.spec import Exclusion, Factors, Row

ValuePair = tuple[tuple[str, Any], tuple[str, Any]]
"""Two factors, each with a value, in the order of the factors."""
CANDIDATES = 6
"""Candidate rows for each added row; more candidates hardly shorten a table."""


def pairwise(
    factors: Factors, exclusions: Sequence[Exclusion] = (), subsets: Sequence[Factors] = ()
) -> list[Row]:
    """Return rows in which every pair of values occurs, except the excluded pairs.

    For a pair that no row contains yet, draw several rows with that pair, adding the other factors
    in random order, and keep the row with the most new pairs. The generator is seeded, so that the
    table is reproducible.

    Args:
        factors: The values of each factor.
        exclusions: The pairs that are impossible.
        subsets: Values of some factors, for example `{"layout": ("contiguous",)}`. Within the rows
            of these values, every possible pair of values occurs too.
    """
    tables = [_Table(restricted(factors, subset), exclusions) for subset in (*subsets, {})]
    rng, rows = random.Random(0), []
    for table in tables:
        for pair in all_pairs(table.factors):
            if pair not in table.missing:
                continue
            candidates = [table.completed(dict(pair), tables, rng) for _ in range(CANDIDATES)]
            rows.append(max(candidates, key=lambda row: _count_new(row, tables)))
            for holder, new in _new_pairs(rows[-1], tables):
                holder.missing -= new
    return rows


def restricted(factors: Factors, subset: Factors) -> Factors:
    """Return the factors, with only the subset's values where the subset names the factor."""
    return {
        name: tuple(value for value in values if value in subset.get(name, values))
        for name, values in factors.items()
    }


def pairs_of(row: Row) -> Iterator[ValuePair]:
    """Yield the pairs of a row."""
    yield from combinations(row.items(), 2)


def all_pairs(factors: Factors) -> Iterator[ValuePair]:
    """Yield every pair of two factors' values, the excluded ones too."""
    for first, second in combinations(factors, 2):
        for value in factors[first]:
            yield from (((first, value), (second, other)) for other in factors[second])


def _count_new(row: Row, tables: Sequence[_Table]) -> int:
    """Count the pairs that the row adds to the tables."""
    return sum(len(new) for _, new in _new_pairs(row, tables))


def _new_pairs(row: Row, tables: Sequence[_Table]) -> list[tuple[_Table, set[ValuePair]]]:
    """Return the tables that contain the row, each with the pairs that the row adds."""
    pairs = {*permutations(row.items(), 2)}
    return [(table, pairs & table.missing) for table in tables if table.holds(row)]


class _Table:
    """Factors with exclusions, and `missing`, the possible pairs that no row contains yet."""

    def __init__(self, factors: Factors, exclusions: Sequence[Exclusion]) -> None:
        self.factors, self._exclusions = factors, exclusions
        possible = [
            pair for pair in all_pairs(factors) if completes(dict(pair), factors, exclusions)
        ]
        self.missing = {*possible, *(pair[::-1] for pair in possible)}

    def completed(self, row: Row, tables: Sequence[_Table], rng: random.Random) -> Row:
        """Return the row with all factors, each added with the value that gains most new pairs."""
        for name in rng.sample([*self.factors], len(self.factors)):
            if name not in row:
                holders = [table for table in tables if table.holds(row)]
                candidates = [
                    (sum(table.gain(name, value, row) for table in holders), rng.random(), value)
                    for value in self.factors[name]
                    if completes({**row, name: value}, self.factors, self._exclusions)
                ]
                row[name] = max(candidates)[-1]
        return {name: row[name] for name in self.factors}

    def holds(self, row: Row) -> bool:
        """Return whether this table has every value of the row."""
        return all(value in self.factors[name] for name, value in row.items())

    def gain(self, name: str, value: Any, row: Row) -> int:
        """Count the missing pairs of the value with the row's values; 0 for an unknown value."""
        if value not in self.factors[name]:
            return 0
        return sum(((name, value), other) in self.missing for other in row.items())


def completes(row: Row, factors: Factors, exclusions: Sequence[Exclusion]) -> bool:
    """Return whether some values of the other factors complete the row without an exclusion."""
    if any(exclusion.holds_for(row) for exclusion in exclusions):
        return False
    bound = {name for exclusion in exclusions for name in exclusion.values}
    name = next((name for name in factors if name in bound and name not in row), None)
    if name is None:
        return True
    return any(completes({**row, name: value}, factors, exclusions) for value in factors[name])
