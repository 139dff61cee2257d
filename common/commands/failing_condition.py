"""The property that separates failing cases from passing ones.

For example: "fails where h > 1 (23 of 23), passes where h = 1 (11 of 11)". The result is the
simplest condition, on one property or on two, that holds for exactly the failing cases. If none
exists, the result is one that holds for all failing cases and few passing ones.

A condition that random labels could satisfy is not reported.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, pairwise
from operator import and_, eq, or_
from typing import Any

from common.spec import Fact

LEAST = 3
"""The fewest failing cases, and the fewest passing cases, for which a condition is reported."""
CHANCE = 1e-3
"""The largest chance of one condition."""
CHANCE_OF_LESS = 1e-4
"""The same for pairs of conditions, since there are many, and for conditions that do not separate
exactly."""
MOST_FURTHER = 2
"""The most further properties that are named if they separate the same cases."""
VALUE, EXACT, KIND, EITHER = range(4)
"""The ranks of conditions, the simplest first. For example: `dtype is float16` or `h > 1`; `h = 2`;
`h is odd`; `dtype is float16 or bfloat16`."""
KINDS: tuple[tuple[str, str, Callable[[Any], bool]], ...] = (
    ("odd", "even", lambda size: size % 2 == 1),
    ("a power of two", "no power of two", lambda size: size.bit_count() == 1),
    ("a multiple of 16", "no multiple of 16", lambda size: size % 16 == 0),
)
Facts = Sequence[Mapping[str, Fact]]
"""The properties of each case by name, the same names in all."""


def failing_condition(failing: Facts, passing: Facts) -> str:
    """Return the separating condition in words; "" if there is none.

    Args:
        failing: The properties of each failing case by name, the same names in all.
        passing: The properties of each passing case, with the same names.
    """
    if min(len(failing), len(passing)) < LEAST:
        return ""
    search = _Search([*failing, *passing], len(failing))
    return search.by_one() or search.by_two() or search.within()


@dataclass(frozen=True)
class Condition:
    """A condition on a case, and the cases for which it holds."""

    rank: int
    fields: tuple[str, ...]
    holds: str
    """The condition in words."""
    lacks: str
    """The opposite condition in words."""
    cases: int
    """The cases for which the condition holds, as bits."""
    also: tuple[str, ...] = ()
    """Other properties on which a condition holds for the same cases."""


Pair = tuple[int, Condition, Condition]
"""Two conditions on different properties, after the cases for which they hold together, as bits."""


class _Search:
    """The conditions on the cases of a run, of which the first have failed."""

    def __init__(self, cases: Facts, fails: int) -> None:
        """Find every condition on the cases, of which the first `fails` have failed."""
        self._count, self._fails = len(cases), fails
        self._failed = (1 << fails) - 1
        """The failing cases, as bits."""
        self._conditions = conditions(cases)

    def by_one(self) -> str:
        """Return, in words, one condition that holds for exactly the failing cases; or ""."""
        found = next((each for each in self._conditions if each.cases == self._failed), None)
        tried = (each.cases for each in self._conditions)
        if not found or self._chance(tried, self._fails) > CHANCE:
            return ""
        also = " and ".join(found.also[:MOST_FURTHER])
        further = f"; {also} tell{'s' * (len(found.also) == 1)} them apart too" if also else ""
        return self._words(found.holds, f"where {found.lacks}") + further

    def by_two(self) -> str:
        """Return, in words, two conditions joined by "and" or "or" for exactly the failing cases.

        Return "" if conditions on other properties separate the cases too, since the cases then do
        not decide between them.
        """
        failed = self._failed
        simple = [each for each in self._conditions if each.rank < EITHER]
        narrower = [each for each in simple if each.cases | failed == failed]
        both = [pair for pair in _pairs(self._wider(simple), and_) if pair[0] == failed]
        either = [pair for pair in _pairs(narrower, or_) if pair[0] == failed]
        if _differ(both + either) or any(each.also for _, *two in both + either for each in two):
            return ""
        tried = {cases for join in (and_, or_) for cases, *_ in _pairs(simple, join)}
        if self._chance(tried, self._fails) > CHANCE_OF_LESS:
            return ""
        found = min(both + either, key=_rank)
        _, one, other = found
        if found in both:
            return self._words(f"{one.holds} and {other.holds}", "elsewhere")
        return self._words(f"{one.holds} or {other.holds}", f"where {one.lacks} and {other.lacks}")

    def within(self) -> str:
        """Return, in words, one condition, or two joined by "and", for all failing cases; or "".

        One condition holds for at most as many passing cases; if not of rank VALUE, for clearly
        fewer than one of rank VALUE. Two conditions hold for fewer than LEAST passing cases. Of
        several pairs that hold for equally few, none is reported if they differ in their
        properties.
        """
        simple = [each for each in self._conditions if each.rank in (VALUE, KIND)]
        wider = [each for each in self._wider(simple) if not each.also]
        if not wider:
            return ""
        one = min(wider, key=lambda each: each.cases.bit_count() + LEAST * (each.rank > VALUE))
        held, pairs = one.cases.bit_count(), list(_pairs(wider, and_))
        fewest = min((cases.bit_count() for cases, *_ in pairs), default=self._count)
        pairs = [pair for pair in pairs if pair[0].bit_count() == fewest]
        few = fewest < min(self._fails + LEAST, held) and not _differ(pairs)
        if few and self._is_narrow(fewest, {cases for cases, *_ in _pairs(simple, and_)}):
            _, first, second = min(pairs, key=_rank)
            return self._words(f"{first.holds} and {second.holds}", "elsewhere", fewest)
        if self._is_narrow(held, (each.cases for each in simple)):
            return self._words(one.holds, f"where {one.lacks}", held)
        return ""

    def _wider(self, found: Iterable[Condition]) -> list[Condition]:
        """Return the conditions that hold for all failing cases."""
        return [each for each in found if each.cases & self._failed == self._failed]

    def _chance(self, tried: Iterable[int], most: int) -> float:
        """Return the probability that random labels fail only cases of one of the tried sets.

        Args:
            tried: The sets of cases for which a condition holds, as bits.
            most: The most cases of a set that counts.
        """
        sizes = (cases.bit_count() for cases in tried)
        ways = sum(math.comb(size, self._fails) for size in sizes if size <= most)
        return ways / math.comb(self._count, self._fails)

    def _is_narrow(self, held: int, tried: Iterable[int]) -> bool:
        """Return whether `held` cases are few, and the chance of a condition on as few is small."""
        few = held <= min(2 * self._fails, self._count - LEAST)
        return few and self._chance(tried, held) <= CHANCE_OF_LESS

    def _words(self, holds: str, lacks: str, held: int = 0) -> str:
        """Return a condition in words; `held` is the number of cases if some of them pass."""
        fails, rest = self._fails, self._count - (held or self._fails)
        where = f"fails{' only' * bool(held)} where {holds} ({fails} of {held or fails})"
        return f"{where}, passes {lacks} ({rest} of {rest})"


def _pairs(candidates: Iterable[Condition], join: Callable[[int, int], int]) -> Iterator[Pair]:
    """Yield each pair of conditions that share no property, joined by `and_` or `or_`."""
    for one, other in combinations(candidates, 2):
        if not set(one.fields) & set(other.fields):
            yield join(one.cases, other.cases), one, other


def _differ(pairs: Iterable[Pair]) -> bool:
    """Return whether there is no pair, or the pairs differ in their properties."""
    return len({frozenset((*one.fields, *other.fields)) for _, one, other in pairs}) != 1


def _rank(pair: Pair) -> int:
    return pair[1].rank + pair[2].rank


# --- conditions -----------------------------------------------------------------------------------


def conditions(cases: Facts) -> list[Condition]:
    """Return every condition and its opposite; if several hold for the same cases, the simplest.

    Conditions that hold for every case or for no case are left out.
    """
    every = (1 << len(cases)) - 1
    simplest: dict[int, Condition] = {}
    for each in sorted(_every_condition(cases), key=lambda condition: condition.rank):
        opposite = replace(each, holds=each.lacks, lacks=each.holds, cases=every ^ each.cases)
        for one in (each, opposite):
            first = simplest.setdefault(one.cases, one)
            if not {*first.fields, *first.also} & {*one.fields}:
                simplest[one.cases] = replace(first, also=first.also + one.fields)
    return [condition for held, condition in simplest.items() if held not in (0, every)]


def _every_condition(cases: Facts) -> Iterator[Condition]:
    """Yield the conditions on each property, and on the equality of two sizes."""
    columns = {name: [case[name] for case in cases] for name in cases[0]}
    sizes = [name for name, column in columns.items() if set(map(type, column)) == {int}]
    for name, column in columns.items():
        is_option = any(isinstance(value, str | bool) for value in column)
        yield from (_of_options if is_option else _of_numbers)(name, column)
        for words, opposite, holds in KINDS if name in sizes else ():
            bits = _bits(map(holds, column))
            yield Condition(KIND, (name,), f"{name} is {words}", f"{name} is {opposite}", bits)
    for one, other in combinations(sizes, 2):
        bits = _bits(map(eq, columns[one], columns[other]))
        yield Condition(KIND, (one, other), f"{one} = {other}", f"{one} ≠ {other}", bits)


def _of_options(name: str, column: Sequence[Any]) -> Iterator[Condition]:
    values = list(dict.fromkeys(column))
    for value in values:
        others = [other for other in values if other != value]
        lacks = f"{name} is {others[0]}" if len(others) == 1 else f"{name} is not {value}"
        bits = _bits(each == value for each in column)
        yield Condition(VALUE, (name,), f"{name} is {value}", lacks, bits)
    for one, other in combinations(values, 2):
        words = f"{name} is {one} or {other}", f"{name} is neither {one} nor {other}"
        yield Condition(EITHER, (name,), *words, _bits(each in (one, other) for each in column))


def _of_numbers(name: str, column: Sequence[Any]) -> Iterator[Condition]:
    values = sorted(set(column))
    for below, above in pairwise(values):
        lacks = f"{name} = {below}" if below == values[0] else f"{name} ≤ {below}"
        holds = f"{name} > {below}" if above == below + 1 else f"{name} ≥ {above}"
        if above == values[-1]:
            holds = f"{name} = {above}"
        yield Condition(VALUE, (name,), holds, lacks, _bits(each >= above for each in column))
    for value in values:
        bits = _bits(each == value for each in column)
        yield Condition(EXACT, (name,), f"{name} = {value}", f"{name} ≠ {value}", bits)


def _bits(truths: Iterable[bool]) -> int:
    return sum(truth << index for index, truth in enumerate(truths))
