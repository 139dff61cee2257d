"""Tables in which each pair of two factors' values occurs: pairwise testing.

A fault mostly shows where two options meet, rarely three. With ten options of four values each, a
table of some 25 rows has every pair; all combinations would be a million.
"""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from allpairspy import AllPairs

Factors = Mapping[str, Sequence[Any]]
"""The values of each factor: `{"dtype": ("float32", "float16"), "interleaved": (False, True)}`."""
Row = dict[str, Any]
"""One value of each factor, or of some."""
Pair = tuple[tuple[str, Any], tuple[str, Any]]
"""Two factors with a value each, in the order of the factors."""


@dataclass(frozen=True)
class Exclusion:
    """Values of two factors that cannot meet, and the reason.

    For example `Exclusion("an odd length has no two chunks", length=(7,), cp=(2, 3))`.
    """

    reason: str
    values: Mapping[str, Collection[Any]]

    def __init__(self, reason: str, **values: Collection[Any]) -> None:
        """State the values of exactly two factors."""
        assert len(values) == 2, "an exclusion is one of pairs"
        object.__setattr__(self, "reason", reason)
        object.__setattr__(self, "values", values)

    def holds_for(self, row: Row) -> bool:
        """Return whether the row has both factors, each with one of the values."""
        return all(name in row and row[name] in values for name, values in self.values.items())


def pairwise(factors: Factors, exclusions: Sequence[Exclusion] = ()) -> list[Row]:
    """Return rows in which each pair of values occurs that the exclusions leave possible.

    The values are shuffled by seeded dice, so that the table is the same each time.
    """
    dice = random.Random(0)
    names = sorted(factors, key=lambda name: -len(factors[name]))  # makes for fewer rows
    shuffled = OrderedDict((name, dice.sample(factors[name], len(factors[name]))) for name in names)

    def allowed(values: Sequence[Any]) -> bool:
        return not _excluded(dict(zip(names, values, strict=False)), exclusions)

    found = [row._asdict() for row in AllPairs(shuffled, filter_func=allowed)]
    rows = [{name: row[name] for name in factors} for row in found]
    # the generator ends at its first row without a new pair, which with exclusions is not the last
    missing = [pair for pair in all_pairs(factors) if _completes(dict(pair), factors, exclusions)]
    while missing := _left(missing, rows):
        rows.append(_row_of(missing, factors, exclusions))
    return rows


def _left(pairs: Iterable[Pair], rows: Iterable[Row]) -> list[Pair]:
    covered = {pair for row in rows for pair in pairs_of(row)}
    return [pair for pair in pairs if pair not in covered]


def _row_of(missing: Sequence[Pair], factors: Factors, exclusions: Sequence[Exclusion]) -> Row:
    """Return a row with the first missing pair, and greedily with as many others as it can have."""

    def gain(row: Row) -> int:
        return sum(dict(pair).items() <= row.items() for pair in missing)

    row = dict(missing[0])
    for name in [name for name in factors if name not in row]:
        tries = ({**row, name: value} for value in factors[name])
        row = max((each for each in tries if _completes(each, factors, exclusions)), key=gain)
    return {name: row[name] for name in factors}


def pairs_of(row: Row) -> Iterator[Pair]:
    """Yield the pairs of a row."""
    yield from combinations(row.items(), 2)


def all_pairs(factors: Factors) -> Iterator[Pair]:
    """Yield every pair of two factors' values, the excluded ones too."""
    for one, other in combinations(factors, 2):
        for value in factors[one]:
            yield from (((one, value), (other, second)) for second in factors[other])


def _excluded(row: Row, exclusions: Iterable[Exclusion]) -> bool:
    return any(each.holds_for(row) for each in exclusions)


def _completes(row: Row, factors: Factors, exclusions: Sequence[Exclusion]) -> bool:
    """Return whether each other factor can take a value, the free ones any, with none excluded."""
    if _excluded(row, exclusions):
        return False
    bound = {name for each in exclusions for name in each.values}
    name = next((name for name in factors if name in bound and name not in row), None)
    if name is None:
        return True
    return any(_completes({**row, name: value}, factors, exclusions) for value in factors[name])
