"""Pairwise testing: tables in which every pair of two factors' values occurs.

Most faults need two options in combination, few need three. Ten options of four values have a
million combinations; about 25 rows contain every pair.

Many solutions support only a subset of the rows, such as contiguous inputs. If a table names that
subset, every pair also occurs within the subset. allpairspy and PICT cannot do this: their
constraints hold for the whole table.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import combinations, permutations
from typing import Any

from common.spec import C, Factors, Row, Table

ValuePair = tuple[tuple[str, Any], tuple[str, Any]]
"""Two factors, each with a value, in the order of the factors."""
CANDIDATES = 6
"""Candidate rows for each added row; more candidates hardly shorten a table."""


def cases_of(table: Table[C]) -> Iterator[C]:
    """Yield the case of each row of an op's table."""
    yield from map(table.case_of, rows_of(table))


def rows_of(table: Table[Any]) -> list[Row]:
    """Return rows in which every possible pair of values occurs, also within each subset.

    For a pair that no row contains yet, draw several rows with that pair, adding the other factors
    in random order, and keep the row with the most new pairs. The generator is seeded, so that the
    table is reproducible.
    """
    rng, rows = random.Random(0), []
    all_missing = [_Missing(table, restricted(table.factors, subset))
                   for subset in (*table.subsets, {})]  # fmt: skip

    def completed(row: Row, values: Factors) -> Row:
        """Add each other factor with the value that gives the row most new pairs."""
        for name in rng.sample([*values], len(values)):
            if name not in row:
                holders = [missing for missing in all_missing if missing.holds(row)]
                candidates = [
                    (sum(each.count(row, (name, value)) for each in holders), rng.random(), value)
                    for value in values[name]
                    if table.possible({**row, name: value})
                ]
                row[name] = max(candidates)[-1]
        return {name: row[name] for name in values}

    def new_pairs(row: Row) -> int:
        pairs = {*permutations(row.items(), 2)}
        return sum(len(pairs & each.pairs) for each in all_missing if each.holds(row))

    for missing in all_missing:
        for pair in all_pairs(missing.values):
            if pair in missing.pairs:
                drawn = [completed(dict(pair), missing.values) for _ in range(CANDIDATES)]
                rows.append(max(drawn, key=new_pairs))
                for each in all_missing:
                    if each.holds(rows[-1]):
                        each.pairs.difference_update(permutations(rows[-1].items(), 2))
    return rows


class _Missing:
    """The possible pairs of some values that no row contains yet, each in both orders."""

    def __init__(self, table: Table[Any], values: Factors) -> None:
        self.values = values
        possible = [pair for pair in all_pairs(values) if table.possible(dict(pair))]
        self.pairs = {*possible, *(pair[::-1] for pair in possible)}

    def holds(self, row: Row) -> bool:
        """Return whether the row has these values alone."""
        return all(value in self.values[name] for name, value in row.items())

    def count(self, row: Row, added: tuple[str, Any]) -> int:
        """Return the number of missing pairs of the added value with the row's values."""
        return sum((added, other) in self.pairs for other in row.items())


def restricted(factors: Factors, subset: Factors) -> Factors:
    """Return the factors, with only the subset's values where the subset names the factor."""
    return {
        name: tuple(value for value in values if value in subset.get(name, values))
        for name, values in factors.items()
    }


def all_pairs(factors: Factors) -> Iterator[ValuePair]:
    """Yield every pair of two factors' values, impossible ones too."""
    for first, second in combinations(factors, 2):
        for value in factors[first]:
            yield from (((first, value), (second, other)) for other in factors[second])
