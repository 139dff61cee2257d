"""Find the property that separates the failing cases of a run from the passing ones.

For example: "fails where h > 1 (23 of 23), passes where h = 1 (11 of 11)". The result is the
simplest condition, on one property or on two, that holds for exactly the failing cases. If none
exists, the result is one that holds for all failing cases and few passing ones. A condition
that random labels could satisfy is not reported.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations, pairwise
from operator import eq, le
from typing import Any

from common.spec import Fact

LEAST = 3
"""The fewest failing cases, and the fewest passing cases, for which a condition is reported."""
CHANCE = 1e-3
"""The largest probability that one condition separates labels drawn at random."""
CHANCE_OF_LESS = 1e-4
"""The same for pairs of conditions, since there are many, and for conditions that do not separate
exactly."""
MOST_FURTHER = 2
"""The most further properties that are named if they separate the same cases."""
VALUE, EXACT, KIND, EITHER = range(4)
"""The ranks of conditions, the simplest first. For example: `dtype is float16` or `h > 1`; `h = 2`;
`h is odd`; `dtype is float16 or bfloat16`."""
KINDS: tuple[tuple[str, str, Callable[[int], bool]], ...] = (
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
    search = _ConditionSearch([*failing, *passing], len(failing))
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


Pair = tuple[Condition, Condition]


class _ConditionSearch:
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
        if not found or self._chance(each.cases for each in self._conditions) > CHANCE:
            return ""
        also = " and ".join(found.also[:MOST_FURTHER])
        further = f"; {also} tell{'s' * (len(found.also) == 1)} them apart too" if also else ""
        return self._exactly(f"where {found.holds}", f"where {found.lacks}") + further

    def by_two(self) -> str:
        """Return, in words, two conditions joined by "and" or "or" for exactly the failing cases.

        Return "" if conditions on other properties separate the cases too, since the cases then do
        not decide between them.
        """
        failed = self._failed
        simple = [each for each in self._conditions if each.rank < EITHER]
        wider = [each for each in simple if each.cases & failed == failed]
        narrower = [each for each in simple if each.cases | failed == failed]
        both = [pair for pair in _pairs(wider) if pair[0].cases & pair[1].cases == failed]
        either = [pair for pair in _pairs(narrower) if pair[0].cases | pair[1].cases == failed]
        if _differ(both + either) or any(each.also for pair in both + either for each in pair):
            return ""
        reachable = {cases for one, other in _pairs(simple)
                     for cases in (one.cases & other.cases, one.cases | other.cases)}  # fmt: skip
        if self._chance(reachable) > CHANCE_OF_LESS:
            return ""
        one, other = min(both + either, key=_rank)
        if (one, other) in both:
            return self._exactly(f"where {one.holds} and {other.holds}", "elsewhere")
        passes = f"where {one.lacks} and {other.lacks}"
        return self._exactly(f"where {one.holds} or {other.holds}", passes)

    def within(self) -> str:
        """Return, in words, one condition, or two joined by "and", for all failing cases; or "".

        One condition holds for at most as many passing cases; if not of rank VALUE, for clearly
        fewer than one of rank VALUE. Two conditions hold for fewer than LEAST passing cases. Of
        several pairs that hold for equally few, none is reported if they differ in their
        properties.
        """
        failed = self._failed
        simple = [each for each in self._conditions if each.rank in (VALUE, KIND)]
        wider = [each for each in simple if each.cases & failed == failed and not each.also]
        if not wider:
            return ""
        one = min(wider, key=lambda each: each.cases.bit_count() + LEAST * (each.rank > VALUE))
        held = one.cases.bit_count()
        by_size: dict[int, list[Pair]] = defaultdict(list)
        for pair in _pairs(wider):
            by_size[(pair[0].cases & pair[1].cases).bit_count()].append(pair)
        fewest = min(by_size, default=self._count)
        if fewest < min(self._fails + LEAST, held) and not _differ(by_size[fewest]):
            reachable = {first.cases & second.cases for first, second in _pairs(simple)}
            if self._is_narrow(fewest, reachable):
                first, second = min(by_size[fewest], key=_rank)
                return self._only(f"{first.holds} and {second.holds}", "elsewhere", fewest)
        if self._is_narrow(held, (each.cases for each in simple)):
            return self._only(one.holds, f"where {one.lacks}", held)
        return ""

    def _chance(self, reachable: Iterable[int], held: int | None = None) -> float:
        """Return the probability that a condition holds for all cases that random labels fail.

        Args:
            reachable: The sets of cases for which a condition can hold, as bits.
            held: The most cases for which it may hold; by default, exactly the failing cases.
        """
        sizes = (cases.bit_count() for cases in reachable)
        ways = sum(math.comb(size, self._fails) for size in sizes if size <= (held or self._fails))
        return ways / math.comb(self._count, self._fails)

    def _is_narrow(self, held: int, reachable: Iterable[int]) -> bool:
        """Return whether a condition holds for few passing cases, and random labels allow no such.

        Args:
            held: The number of cases for which the condition holds.
            reachable: The sets of cases for which a condition can hold, as bits.
        """
        few = held <= min(2 * self._fails, self._count - LEAST)
        return few and self._chance(reachable, held) <= CHANCE_OF_LESS

    def _exactly(self, holds: str, lacks: str) -> str:
        fails, passes = self._fails, self._count - self._fails
        return f"fails {holds} ({fails} of {fails}), passes {lacks} ({passes} of {passes})"

    def _only(self, holds: str, lacks: str, held: int) -> str:
        rest = self._count - held
        words = f"fails only where {holds} ({self._fails} of {held})"
        return f"{words}, passes {lacks} ({rest} of {rest})"


def _pairs(candidates: Iterable[Condition]) -> Iterator[Pair]:
    """Yield each pair of conditions that share no property."""
    for one, other in combinations(candidates, 2):
        if not set(one.fields) & set(other.fields):
            yield one, other


def _differ(pairs: Iterable[Pair]) -> bool:
    """Return whether there is no pair, or the pairs differ in their properties."""
    return len({frozenset((*one.fields, *other.fields)) for one, other in pairs}) != 1


def _rank(pair: Pair) -> int:
    return pair[0].rank + pair[1].rank


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
    sizes: list[str] = []
    for name in cases[0]:
        column = [case[name] for case in cases]
        numeric = not any(isinstance(value, str | bool) for value in column)
        if numeric and all(isinstance(value, int) for value in column):
            sizes.append(name)
        describe = _of_numbers if numeric else _of_options
        descriptions = [*describe(name, column), *(_of_sizes(name) if name in sizes else ())]
        for rank, holds, lacks, is_true in descriptions:
            bits = sum(is_true(value) << index for index, value in enumerate(column))
            yield Condition(rank, (name,), holds, lacks, bits)
    for one, other in combinations(sizes, 2):
        bits = sum((case[one] == case[other]) << index for index, case in enumerate(cases))
        yield Condition(KIND, (one, other), f"{one} = {other}", f"{one} ≠ {other}", bits)


_Description = tuple[int, str, str, Callable[[Any], bool]]
"""A condition's rank, the condition in words, its opposite in words, and its truth for a value."""


def _of_options(name: str, column: Sequence[Any]) -> Iterator[_Description]:
    values = list(dict.fromkeys(column))
    for value in values:
        others = [other for other in values if other != value]
        lacks = f"{name} is {others[0]}" if len(others) == 1 else f"{name} is not {value}"
        yield VALUE, f"{name} is {value}", lacks, partial(eq, value)
    for pair in combinations(values, 2):
        one, other = pair
        words = f"{name} is {one} or {other}", f"{name} is neither {one} nor {other}"
        yield EITHER, *words, pair.__contains__


def _of_numbers(name: str, column: Sequence[Any]) -> Iterator[_Description]:
    values = sorted(set(column))
    for below, above in pairwise(values):
        lacks = f"{name} = {below}" if below == values[0] else f"{name} ≤ {below}"
        holds = f"{name} > {below}" if above == below + 1 else f"{name} ≥ {above}"
        if above == values[-1]:
            holds = f"{name} = {above}"
        yield VALUE, holds, lacks, partial(le, above)
    for value in values:
        yield EXACT, f"{name} = {value}", f"{name} ≠ {value}", partial(eq, value)


def _of_sizes(name: str) -> Iterator[_Description]:
    for words, opposite, holds in KINDS:
        yield KIND, f"{name} is {words}", f"{name} is {opposite}", holds
