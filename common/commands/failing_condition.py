"""The property that separates failing cases from passing ones.

For example: "fails where h > 1 (23 of 23)". The result is the simplest condition on one property
that holds for exactly the failing cases. If none exists, the result is one that holds for all
failing cases and few passing ones.

A condition that random labels could satisfy is not reported.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, pairwise
from operator import eq
from typing import Any

from common.spec import Fact

LEAST = 3
"""The fewest failing cases, and the fewest passing cases, for which a condition is reported."""
CHANCE = 1e-3
"""The largest chance of a condition that separates exactly."""
CHANCE_OF_LESS = 1e-4
"""The largest chance of a condition that holds for some passing cases too."""
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
    is_shared: bool = False
    """Whether a condition on other properties holds for the same cases."""


def failing_condition(failing: Facts, passing: Facts) -> str:
    """Return where cases fail, in words; "" if no condition separates them from the passing ones.

    A condition that holds for passing cases too is of rank VALUE or KIND. It holds for at most as
    many passing cases as failing ones; if not of rank VALUE, for clearly fewer than one of rank
    VALUE.
    """
    fails, count = len(failing), len(failing) + len(passing)
    if min(fails, len(passing)) < LEAST:
        return ""

    def chance(tried: Iterable[Condition], most: int) -> float:
        """Return the probability that random labels fail only cases of one of these conditions.

        Conditions that hold for more than `most` cases do not count.
        """
        sizes = (each.cases.bit_count() for each in tried)
        ways = sum(math.comb(size, fails) for size in sizes if size <= most)
        return ways / math.comb(count, fails)

    every, failed = conditions([*failing, *passing]), (1 << fails) - 1
    exact = next((each for each in every if each.cases == failed), None)
    if exact and chance(every, fails) <= CHANCE:
        return f"fails where {exact.holds} ({fails} of {fails})"
    simple = [each for each in every if each.rank in (VALUE, KIND)]
    wider = [each for each in simple if each.cases & failed == failed and not each.is_shared]
    if not wider:
        return ""
    found = min(wider, key=lambda each: each.cases.bit_count() + LEAST * (each.rank > VALUE))
    held = found.cases.bit_count()
    few = held <= min(2 * fails, count - LEAST) and chance(simple, held) <= CHANCE_OF_LESS
    return f"fails{' only' * (held > fails)} where {found.holds} ({fails} of {held})" if few else ""


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
            if not {*first.fields} & {*one.fields}:
                simplest[one.cases] = replace(first, is_shared=True)
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
