"""Tables in which each pair of two factors' values occurs: pairwise testing.

A fault mostly shows where two options meet, rarely three. With ten options of four values each, a
table of some 25 rows has every pair; all combinations would be a million.

Many a solution answers a subset of the rows alone, such as contiguous inputs. Where a table names
that subset, each pair occurs among its rows too. No library known to us does this: allpairspy and
PICT take constraints on the whole table.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from itertools import combinations, permutations
from typing import Any

from common.spec import Exclusion, Factors, Row

ValuePair = tuple[tuple[str, Any], tuple[str, Any]]
"""Two factors with a value each, in the order of the factors."""
TRIES = 6
"""Rows among which the one with the most new pairs is taken; more would hardly shorten a table."""


def pairwise(
    factors: Factors, exclusions: Sequence[Exclusion] = (), subsets: Sequence[Factors] = ()
) -> list[Row]:
    """Return rows in which each pair of values occurs that the exclusions leave possible.

    A pair that no row has yet is completed to a row several times, in a random order of the other
    factors, and the row with the most new pairs is taken. The dice are seeded, so that the table is
    the same each time.

    Args:
        factors: The values of each factor.
        exclusions: The pairs that cannot be had.
        subsets: The values of some factors, for example `{"layout": ("contiguous",)}`. Among the
            rows with these values each pair occurs, too, that they leave possible.
    """
    tables = [_Table(restricted(factors, subset), exclusions) for subset in (*subsets, {})]
    dice, rows = random.Random(0), []
    for table in tables:
        for pair in all_pairs(table.factors):
            if pair not in table.missing:
                continue
            tries = [table.completed(dict(pair), tables, dice) for _ in range(TRIES)]
            rows.append(max(tries, key=lambda row: sum(len(new) for _, new in _new(row, tables))))
            for each, new in _new(rows[-1], tables):
                each.missing -= new
    return rows


def restricted(factors: Factors, subset: Factors) -> Factors:
    """Return the factors with those values alone that the subset has."""
    return {
        name: tuple(value for value in values if value in subset.get(name, values))
        for name, values in factors.items()
    }


def pairs_of(row: Row) -> Iterator[ValuePair]:
    """Yield the pairs of a row."""
    yield from combinations(row.items(), 2)


def all_pairs(factors: Factors) -> Iterator[ValuePair]:
    """Yield every pair of two factors' values, the excluded ones too."""
    for one, other in combinations(factors, 2):
        for value in factors[one]:
            yield from (((one, value), (other, second)) for second in factors[other])


def _new(row: Row, tables: Sequence[_Table]) -> list[tuple[_Table, set[ValuePair]]]:
    """Return the tables that the row is of, each with those of its pairs that are missing there."""
    pairs = {*permutations(row.items(), 2)}
    return [(table, pairs & table.missing) for table in tables if table.holds(row)]


class _Table:
    """The pairs that some values leave possible, and those of them that no row has yet."""

    def __init__(self, factors: Factors, exclusions: Sequence[Exclusion]) -> None:
        self.factors, self._exclusions = factors, exclusions
        possible = [
            pair for pair in all_pairs(factors) if completes(dict(pair), factors, exclusions)
        ]
        self.missing = {*possible, *(pair[::-1] for pair in possible)}

    def completed(self, row: Row, tables: Sequence[_Table], dice: random.Random) -> Row:
        """Return the row with the values of the other factors by which it gains most new pairs."""
        for name in dice.sample([*self.factors], len(self.factors)):
            if name not in row:
                theirs = [table for table in tables if table.holds(row)]
                tries = [
                    (sum(table.gain(name, value, row) for table in theirs), dice.random(), value)
                    for value in self.factors[name]
                    if completes({**row, name: value}, self.factors, self._exclusions)
                ]
                row[name] = max(tries)[-1]
        return {name: row[name] for name in self.factors}

    def holds(self, row: Row) -> bool:
        """Return whether each value of the row is one of this table."""
        return all(value in self.factors[name] for name, value in row.items())

    def gain(self, name: str, value: Any, row: Row) -> int:
        """Return how many pairs of the value with the row's are missing, if it is of this table."""
        if value not in self.factors[name]:
            return 0
        return sum(((name, value), other) in self.missing for other in row.items())


def completes(row: Row, factors: Factors, exclusions: Sequence[Exclusion]) -> bool:
    """Return whether each other factor can take a value, the free ones any, with none excluded."""
    if any(exclusion.holds_for(row) for exclusion in exclusions):
        return False
    bound = {name for exclusion in exclusions for name in exclusion.values}
    name = next((name for name in factors if name in bound and name not in row), None)
    if name is None:
        return True
    return any(completes({**row, name: value}, factors, exclusions) for value in factors[name])
