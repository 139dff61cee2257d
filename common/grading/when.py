"""Find the property that separates the failing cases of a run from the passing ones.

For example "fails where h > 1 (23 of 23), passes where h = 1 (11 of 11)". A condition is on one
property or on two; the simplest that separates exactly is taken, and none that chance could find.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise

from common.spec import Fact

LEAST = 3
"""The fewest failing and the fewest passing cases that say something."""
CHANCE = 1e-3
"""The largest probability that labels drawn at random would be separated as well."""
VALUE, EXACT, KIND, EITHER = range(4)
"""The ranks of conditions, the simplest first: an option's value or the side of a threshold; a
number among others; a kind of number, such as odd; either of two values."""
PAIRED = (VALUE, EXACT, KIND)
"""The ranks of those that are combined in pairs."""


Facts = Sequence[Mapping[str, Fact]]


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


def when(failing: Facts, passing: Facts) -> str:
    """Return the separating condition in words, empty where there is none.

    Args:
        failing: The properties of each failing case by name, the same names in all.
        passing: Those of each passing case.
    """
    if min(len(failing), len(passing)) < LEAST:
        return ""
    cases = [*failing, *passing]
    failed = (1 << len(failing)) - 1
    conditions = list(_distinct(_conditions(cases), (1 << len(cases)) - 1))
    found = _one(conditions, failed, len(cases)) or _two(conditions, failed, len(cases))
    if not found:
        return ""
    fails, passes = (f"({len(some)} of {len(some)})" for some in (failing, passing))
    return f"fails {found[0]} {fails}, passes {found[1]} {passes}"


def _one(conditions: Sequence[Condition], failing: int, cases: int) -> tuple[str, str] | None:
    """Return the words for the failing and for the passing cases, by one condition."""
    found = next((each for each in conditions if each.cases == failing), None)
    if not found or not _beyond_chance({each.cases for each in conditions}, failing, cases):
        return None
    return f"where {found.holds}", f"where {found.lacks}"


def _two(conditions: Iterable[Condition], failing: int, cases: int) -> tuple[str, str] | None:
    """Return the words by two conditions: fails where both hold, or where either does."""
    paired = [each for each in conditions if each.rank in PAIRED]
    wider = [each for each in paired if each.cases & failing == failing]
    narrower = [each for each in paired if each.cases | failing == failing]
    both = [pair for pair in _pairs(wider) if pair[0].cases & pair[1].cases == failing]
    either = [pair for pair in _pairs(narrower) if pair[0].cases | pair[1].cases == failing]
    if not both and not either:
        return None
    reachable = {
        cases for one, other in _pairs(paired)
        for cases in (one.cases & other.cases, one.cases | other.cases)
    }  # fmt: skip
    if not _beyond_chance(reachable, failing, cases):
        return None
    one, other = min(both + either, key=lambda pair: pair[0].rank + pair[1].rank)
    if (one, other) in both:
        return f"where {one.holds} and {other.holds}", "elsewhere"
    return f"where {one.holds} or {other.holds}", f"where {one.lacks} and {other.lacks}"


def _pairs(conditions: Iterable[Condition]) -> Iterator[tuple[Condition, Condition]]:
    for one, other in combinations(conditions, 2):
        if not set(one.fields) & set(other.fields):
            yield one, other


def _beyond_chance(reachable: Iterable[int], failing: int, cases: int) -> bool:
    """Return whether labels drawn at random would hardly be separated by any of these sets.

    As many cases fail in each draw, so that only the sets of that size count.
    """
    count = failing.bit_count()
    alike = sum(each.bit_count() == count for each in reachable)
    return alike <= CHANCE * math.comb(cases, count)


# --- conditions -----------------------------------------------------------------------------------


def _distinct(conditions: Iterable[Condition], every: int) -> Iterator[Condition]:
    """Yield each condition and its opposite, of those that hold for the same cases the simplest."""
    seen = {0, every}
    for each in sorted(conditions, key=lambda each: each.rank):
        opposite = Condition(each.rank, each.fields, each.lacks, each.holds, every ^ each.cases)
        for one in (each, opposite):
            if one.cases not in seen:
                seen.add(one.cases)
                yield one


def _conditions(cases: Facts) -> Iterator[Condition]:
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
