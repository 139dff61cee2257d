"""The conditions on the properties of cases: sizes, options, dtypes, layouts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, pairwise

from common.spec import Fact

VALUE, EXACT, KIND, EITHER = range(4)
"""The ranks of conditions, the simplest first: an option's value or the side of a threshold; a
number among others; a kind of number, such as odd; either of two values."""
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
    found: dict[int, Condition] = {}
    for each in sorted(_every_condition(cases), key=lambda each: each.rank):
        for one in (each, each.opposite(every)):
            first = found.setdefault(one.cases, one)
            if not {*first.fields, *first.also} & {*one.fields}:
                found[one.cases] = replace(first, also=first.also + one.fields)
    return [one for cases, one in found.items() if cases not in (0, every)]


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
