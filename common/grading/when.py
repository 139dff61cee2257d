"""Find the property that separates the failing cases of a run from the passing ones.

For example "fails where h > 1 (23 of 23), passes where h = 1 (11 of 11)". A condition is on one
property or on two. The simplest that separates exactly is taken, else one outside of which nothing
fails, and none that chance could find.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations

from common.grading.conditions import EITHER, VALUE, Condition, Facts, conditions

LEAST = 3
"""The fewest failing and the fewest passing cases that say something."""
CHANCE = 1e-3
"""The largest probability that labels drawn at random would be separated by one condition."""
CHANCE_OF_LESS = 1e-4
"""The same for two conditions, which are many, and for one that does not separate exactly."""
MOST = 2
"""So many further properties are named that separate the same cases."""


def when(failing: Facts, passing: Facts) -> str:
    """Return the separating condition in words, empty where there is none.

    Args:
        failing: The properties of each failing case by name, the same names in all.
        passing: Those of each passing case.
    """
    if min(len(failing), len(passing)) < LEAST:
        return ""
    several = conditions([*failing, *passing])
    failed, count = (1 << len(failing)) - 1, len(failing) + len(passing)
    for separated in (_by_one, _by_two, _within_one):
        if words := separated(several, failed, count):
            return words
    return ""


def _by_one(several: Sequence[Condition], failed: int, count: int) -> str:
    """Return one condition for exactly the failing cases."""
    found = next((each for each in several if each.cases == failed), None)
    if not found or _by_chance((each.cases for each in several), failed, count, CHANCE):
        return ""
    also = " and ".join(found.also[:MOST])
    further = f"; {also} tell{'s' * (len(found.also) == 1)} them apart too" if also else ""
    return _words(f"where {found.holds}", f"where {found.lacks}", failed, count) + further


def _by_two(several: Sequence[Condition], failed: int, count: int) -> str:
    """Return two conditions for the failing cases: both hold, or either does.

    Where other properties would do as well, the cases do not tell which two it is.
    """
    simple = [each for each in several if each.rank < EITHER]
    wider = [each for each in simple if each.cases & failed == failed]
    narrower = [each for each in simple if each.cases | failed == failed]
    both = [pair for pair in _pairs(wider) if pair[0].cases & pair[1].cases == failed]
    either = [pair for pair in _pairs(narrower) if pair[0].cases | pair[1].cases == failed]
    properties = {(*one.fields, *other.fields) for one, other in both + either}
    if len(properties) != 1 or any(each.also for pair in both + either for each in pair):
        return ""
    reachable = {cases for pair in _pairs(simple) for cases in _combined(*pair)}
    if _by_chance(reachable, failed, count, CHANCE_OF_LESS):
        return ""
    one, other = min(both + either, key=lambda pair: pair[0].rank + pair[1].rank)
    if (one, other) in both:
        return _words(f"where {one.holds} and {other.holds}", "elsewhere", failed, count)
    passes = f"where {one.lacks} and {other.lacks}"
    return _words(f"where {one.holds} or {other.holds}", passes, failed, count)


def _within_one(several: Sequence[Condition], failed: int, count: int) -> str:
    """Return one condition that holds for all failing cases and for no more passing ones."""
    fails = failed.bit_count()
    several = [each for each in several if each.rank == VALUE]
    wider = [each for each in several if each.cases & failed == failed and not each.also]
    found = min(wider, key=lambda each: each.cases.bit_count(), default=None)
    if not found or (holds := found.cases.bit_count()) > min(2 * fails, count - LEAST):
        return ""
    sizes = (each.cases.bit_count() for each in several)
    chance = sum(math.comb(size, fails) for size in sizes if size <= holds)
    if chance > CHANCE_OF_LESS * math.comb(count, fails):
        return ""
    rest = count - holds
    words = f"fails only where {found.holds} ({fails} of {holds})"
    return f"{words}, passes where {found.lacks} ({rest} of {rest})"


def _words(holds: str, lacks: str, failed: int, count: int) -> str:
    fails = failed.bit_count()
    passes = count - fails
    return f"fails {holds} ({fails} of {fails}), passes {lacks} ({passes} of {passes})"


def _pairs(several: Iterable[Condition]) -> Iterator[tuple[Condition, Condition]]:
    for one, other in combinations(several, 2):
        if not set(one.fields) & set(other.fields):
            yield one, other


def _combined(one: Condition, other: Condition) -> tuple[int, int]:
    return one.cases & other.cases, one.cases | other.cases


def _by_chance(reachable: Iterable[int], failed: int, count: int, most: float) -> bool:
    """Return whether labels drawn at random are one of these sets more often than `most`.

    As many cases fail in each draw, so that only the sets of that size count.
    """
    fails = failed.bit_count()
    alike = sum(each.bit_count() == fails for each in reachable)
    return alike > most * math.comb(count, fails)
