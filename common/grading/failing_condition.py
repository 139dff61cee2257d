"""Find the property that separates the failing cases of a run from the passing ones.

For example "fails where h > 1 (23 of 23), passes where h = 1 (11 of 11)". A condition is on one
property or on two. The simplest that separates exactly is taken, else one outside of which nothing
fails, and none that chance could find.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, pairwise

from common.spec import Fact

LEAST = 3
"""The fewest failing and the fewest passing cases that say something."""
CHANCE = 1e-3
"""The largest probability that labels drawn at random would be separated by one condition."""
CHANCE_OF_LESS = 1e-4
"""The same for two conditions, which are many, and for one that does not separate exactly."""
MOST = 2
"""So many further properties are named that separate the same cases."""
VALUE, EXACT, KIND, EITHER = range(4)
"""The ranks of conditions, the simplest first: an option's value or the side of a threshold; a
number among others; a kind of number, such as odd; either of two values."""
Facts = Sequence[Mapping[str, Fact]]
"""The properties of each case by name, the same names in all."""


def failing_condition(failing: Facts, passing: Facts) -> str:
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
    condition = next((each for each in several if each.cases == failed), None)
    if not condition or _by_chance((each.cases for each in several), failed, count, CHANCE):
        return ""
    also = " and ".join(condition.also[:MOST])
    further = f"; {also} tell{'s' * (len(condition.also) == 1)} them apart too" if also else ""
    return _words(f"where {condition.holds}", f"where {condition.lacks}", failed, count) + further


def _by_two(several: Sequence[Condition], failed: int, count: int) -> str:
    """Return two conditions for the failing cases: both hold, or either does.

    Where other properties would do as well, the cases do not tell which two it is.
    """
    simple = [condition for condition in several if condition.rank < EITHER]
    wider = [condition for condition in simple if condition.cases & failed == failed]
    narrower = [condition for condition in simple if condition.cases | failed == failed]
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
    condition = min(wider, key=lambda each: each.cases.bit_count(), default=None)
    if not condition or (holds := condition.cases.bit_count()) > min(2 * fails, count - LEAST):
        return ""
    sizes = (each.cases.bit_count() for each in several)
    chance = sum(math.comb(size, fails) for size in sizes if size <= holds)
    if chance > CHANCE_OF_LESS * math.comb(count, fails):
        return ""
    rest = count - holds
    words = f"fails only where {condition.holds} ({fails} of {holds})"
    return f"{words}, passes where {condition.lacks} ({rest} of {rest})"


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


# --- conditions -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Condition:
    """A condition on a case, and the cases for which it holds."""

    rank: int
    fields: tuple[str, ...]
    holds: str
    """The condition in words."""
    lacks: str
    """Its opposite in words."""
    cases: int
    """The cases for which it holds, as bits."""
    also: tuple[str, ...] = ()
    """The other properties by which the same cases can be told."""

    def opposite(self, every: int) -> Condition:
        """Return the condition that holds for all other cases."""
        return replace(self, holds=self.lacks, lacks=self.holds, cases=every ^ self.cases)


def conditions(cases: Facts) -> list[Condition]:
    """Return each condition and its opposite, of those that hold for the same cases the simplest.

    Those that hold for every case or for none are left out.
    """
    every = (1 << len(cases)) - 1
    conditions: dict[int, Condition] = {}
    for condition in sorted(_every_condition(cases), key=lambda each: each.rank):
        for one in (condition, condition.opposite(every)):
            first = conditions.setdefault(one.cases, one)
            if not {*first.fields, *first.also} & {*one.fields}:
                conditions[one.cases] = replace(first, also=first.also + one.fields)
    return [one for cases, one in conditions.items() if cases not in (0, every)]


def _every_condition(cases: Facts) -> Iterator[Condition]:
    """Yield the conditions on each property, and on two sizes that are equal."""
    sizes: dict[str, list[int]] = {}
    for name in cases[0]:
        column = [case[name] for case in cases]
        numbers = [value for value in column if not isinstance(value, str | bool)]
        if len(numbers) < len(column):
            yield from _conditions_of(name, _of_options(name, column))
            continue
        yield from _conditions_of(name, _of_numbers(name, numbers))
        whole = [value for value in numbers if isinstance(value, int)]
        if len(whole) == len(column):
            sizes[name] = whole
            yield from _conditions_of(name, _of_sizes(name, whole))
    for one, other in combinations(sizes, 2):
        equal = [a == b for a, b in zip(sizes[one], sizes[other], strict=True)]
        words = f"{one} = {other}", f"{one} ≠ {other}"
        yield Condition(KIND, (one, other), *words, _bits(equal))


_Words = tuple[int, str, str, list[bool]]
"""A condition's rank, its words, those of its opposite, and its truth on each case."""


def _conditions_of(name: str, several: Iterable[_Words]) -> Iterator[Condition]:
    for rank, holds, lacks, truths in several:
        yield Condition(rank, (name,), holds, lacks, _bits(truths))


def _of_options(name: str, column: Sequence[Fact]) -> Iterator[_Words]:
    values = list(dict.fromkeys(column))
    for value in values:
        others = [other for other in values if other != value]
        lacks = f"{name} is {others[0]}" if len(others) == 1 else f"{name} is not {value}"
        yield VALUE, f"{name} is {value}", lacks, [each == value for each in column]
    for one, other in combinations(values, 2):
        words = f"{name} is {one} or {other}", f"{name} is neither {one} nor {other}"
        yield EITHER, *words, [each in (one, other) for each in column]


def _of_numbers(name: str, column: Sequence[float]) -> Iterator[_Words]:
    values = sorted(set(column))
    for below, above in pairwise(values):
        lacks = f"{name} = {below}" if below == values[0] else f"{name} ≤ {below}"
        holds = f"{name} > {below}" if above == below + 1 else f"{name} ≥ {above}"
        if above == values[-1]:
            holds = f"{name} = {above}"
        yield VALUE, holds, lacks, [each >= above for each in column]
    for value in values:
        yield EXACT, f"{name} = {value}", f"{name} ≠ {value}", [each == value for each in column]


def _of_sizes(name: str, column: Sequence[int]) -> Iterator[_Words]:
    for words, opposite, holds in KINDS:
        truths = [holds(size) for size in column]
        yield KIND, f"{name} is {words}", f"{name} is {opposite}", truths


KINDS: tuple[tuple[str, str, Callable[[int], bool]], ...] = (
    ("odd", "even", lambda size: size % 2 == 1),
    ("a power of two", "no power of two", lambda size: size.bit_count() == 1),
    ("a multiple of 16", "no multiple of 16", lambda size: size % 16 == 0),
)


def _bits(truths: Iterable[bool]) -> int:
    """Return the indices of the true values as bits."""
    return sum(truth << index for index, truth in enumerate(truths))
