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
from itertools import combinations, pairwise

from common.spec import Fact

LEAST = 3
"""The fewest failing cases, and the fewest passing cases, for which a condition is reported."""
CHANCE = 1e-3
"""The largest probability that one condition separates labels drawn at random."""
CHANCE_OF_LESS = 1e-4
"""The same for pairs of conditions, since there are many, and for conditions that do not separate
exactly."""
MOST = 2
"""The most further properties that are named if they separate the same cases."""
VALUE, EXACT, KIND, EITHER = range(4)
"""The ranks of conditions, the simplest first. For example: `dtype is float16` or `h > 1`; `h = 2`;
`h is odd`; `dtype is float16 or bfloat16`."""
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
    candidates = conditions([*failing, *passing])
    failed, count = (1 << len(failing)) - 1, len(failing) + len(passing)
    for search in (_by_one, _by_two, _within):
        if words := search(candidates, failed, count):
            return words
    return ""


def _by_one(candidates: Sequence[Condition], failed: int, count: int) -> str:
    """Return, in words, one condition that holds for exactly the failing cases; or ""."""
    condition = next((condition for condition in candidates if condition.cases == failed), None)
    reachable = (candidate.cases for candidate in candidates)
    if not condition or _by_chance(reachable, failed, count, CHANCE):
        return ""
    also = " and ".join(condition.also[:MOST])
    further = f"; {also} tell{'s' * (len(condition.also) == 1)} them apart too" if also else ""
    return _words(f"where {condition.holds}", f"where {condition.lacks}", failed, count) + further


def _by_two(candidates: Sequence[Condition], failed: int, count: int) -> str:
    """Return, in words, two conditions joined by "and" or "or" for exactly the failing cases.

    Return "" if conditions on other properties separate the cases too, since the cases then do not
    decide between them.
    """
    simple = [condition for condition in candidates if condition.rank < EITHER]
    wider = [condition for condition in simple if condition.cases & failed == failed]
    narrower = [condition for condition in simple if condition.cases | failed == failed]
    both = [pair for pair in _pairs(wider) if pair[0].cases & pair[1].cases == failed]
    either = [pair for pair in _pairs(narrower) if pair[0].cases | pair[1].cases == failed]
    properties = set(map(_properties, both + either))
    if len(properties) != 1 or any(condition.also for pair in both + either for condition in pair):
        return ""
    reachable = {cases for pair in _pairs(simple) for cases in _combined(*pair)}
    if _by_chance(reachable, failed, count, CHANCE_OF_LESS):
        return ""
    one, other = min(both + either, key=_rank)
    if (one, other) in both:
        return _words(f"where {one.holds} and {other.holds}", "elsewhere", failed, count)
    passes = f"where {one.lacks} and {other.lacks}"
    return _words(f"where {one.holds} or {other.holds}", passes, failed, count)


def _within(candidates: Sequence[Condition], failed: int, count: int) -> str:
    """Return, in words, one condition, or two joined by "and", for all failing cases; or "".

    One condition holds for at most as many passing cases; if not of rank VALUE, for clearly fewer
    than one of rank VALUE. Two conditions hold for fewer than LEAST passing cases. Of several pairs
    that hold for equally few, none is reported if they differ in their properties.
    """
    simple = [condition for condition in candidates if condition.rank in (VALUE, KIND)]
    wider = [
        condition
        for condition in simple
        if condition.cases & failed == failed and not condition.also
    ]
    if not wider:
        return ""
    condition = min(wider, key=lambda each: each.cases.bit_count() + LEAST * (each.rank > VALUE))
    held = condition.cases.bit_count()
    by_size: dict[int, list[tuple[Condition, Condition]]] = defaultdict(list)
    for one, other in _pairs(wider):
        by_size[(one.cases & other.cases).bit_count()].append((one, other))
    fewest = min(by_size, default=count)
    if (
        fewest < min(failed.bit_count() + LEAST, held)
        and len(set(map(_properties, by_size[fewest]))) == 1
    ):
        reachable = {one.cases & other.cases for one, other in _pairs(simple)}
        if _is_narrow(fewest, reachable, failed, count):
            one, other = min(by_size[fewest], key=_rank)
            return _only(f"{one.holds} and {other.holds}", "elsewhere", failed, fewest, count)
    if _is_narrow(held, (each.cases for each in simple), failed, count):
        return _only(condition.holds, f"where {condition.lacks}", failed, held, count)
    return ""


def _properties(pair: tuple[Condition, Condition]) -> frozenset[str]:
    return frozenset((*pair[0].fields, *pair[1].fields))


def _rank(pair: tuple[Condition, Condition]) -> int:
    return pair[0].rank + pair[1].rank


def _is_narrow(holds: int, reachable: Iterable[int], failed: int, count: int) -> bool:
    """Return whether a condition holds for few passing cases, and random labels allow no such.

    Args:
        holds: The number of cases for which the condition holds.
        reachable: The sets of cases for which a condition can hold, as bits.
        failed: The failing cases, as bits.
        count: The number of all cases.
    """
    fails = failed.bit_count()
    sizes = (cases.bit_count() for cases in reachable)
    chance = sum(math.comb(size, fails) for size in sizes if size <= holds)
    few = holds <= min(2 * fails, count - LEAST)
    return few and chance <= CHANCE_OF_LESS * math.comb(count, fails)


def _only(holds: str, lacks: str, failed: int, held: int, count: int) -> str:
    rest = count - held
    words = f"fails only where {holds} ({failed.bit_count()} of {held})"
    return f"{words}, passes {lacks} ({rest} of {rest})"


def _words(holds: str, lacks: str, failed: int, count: int) -> str:
    fails = failed.bit_count()
    passes = count - fails
    return f"fails {holds} ({fails} of {fails}), passes {lacks} ({passes} of {passes})"


def _pairs(candidates: Iterable[Condition]) -> Iterator[tuple[Condition, Condition]]:
    """Yield each pair of conditions that share no property."""
    for one, other in combinations(candidates, 2):
        if not set(one.fields) & set(other.fields):
            yield one, other


def _combined(one: Condition, other: Condition) -> tuple[int, int]:
    return one.cases & other.cases, one.cases | other.cases


def _by_chance(reachable: Iterable[int], failed: int, count: int, most: float) -> bool:
    """Return whether random labels would be separable with a probability above `most`.

    A random draw labels the same number of cases as failing, so only sets of that size count.

    Args:
        reachable: The sets of cases that a condition can separate, as bits.
        failed: The failing cases, as bits.
        count: The number of all cases.
        most: The largest probability.
    """
    fails = failed.bit_count()
    matches = sum(cases.bit_count() == fails for cases in reachable)
    return matches > most * math.comb(count, fails)


# --- conditions -----------------------------------------------------------------------------------


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

    def opposite(self, every: int) -> Condition:
        """Return the condition that holds for all other cases."""
        return replace(self, holds=self.lacks, lacks=self.holds, cases=every ^ self.cases)


def conditions(cases: Facts) -> list[Condition]:
    """Return every condition and its opposite; if several hold for the same cases, the simplest.

    Conditions that hold for every case or for no case are left out.
    """
    every = (1 << len(cases)) - 1
    simplest: dict[int, Condition] = {}
    for condition in sorted(_every_condition(cases), key=lambda condition: condition.rank):
        for one in (condition, condition.opposite(every)):
            first = simplest.setdefault(one.cases, one)
            if not {*first.fields, *first.also} & {*one.fields}:
                simplest[one.cases] = replace(first, also=first.also + one.fields)
    return [condition for held, condition in simplest.items() if held not in (0, every)]


def _every_condition(cases: Facts) -> Iterator[Condition]:
    """Yield the conditions on each property, and on the equality of two sizes."""
    sizes: dict[str, list[int]] = {}
    for name in cases[0]:
        column = [case[name] for case in cases]
        numbers = [value for value in column if not isinstance(value, str | bool)]
        if len(numbers) < len(column):
            yield from _conditions_of(name, _of_options(name, column))
            continue
        yield from _conditions_of(name, _of_numbers(name, numbers))
        integers = [value for value in numbers if isinstance(value, int)]
        if len(integers) == len(column):
            sizes[name] = integers
            yield from _conditions_of(name, _of_sizes(name, integers))
    for one, other in combinations(sizes, 2):
        equal = [a == b for a, b in zip(sizes[one], sizes[other], strict=True)]
        words = f"{one} = {other}", f"{one} ≠ {other}"
        yield Condition(KIND, (one, other), *words, _bits(equal))


_Description = tuple[int, str, str, list[bool]]
"""A condition's rank, the condition in words, its opposite in words, and its truth on each case."""


def _conditions_of(name: str, descriptions: Iterable[_Description]) -> Iterator[Condition]:
    for rank, holds, lacks, truths in descriptions:
        yield Condition(rank, (name,), holds, lacks, _bits(truths))


def _of_options(name: str, column: Sequence[Fact]) -> Iterator[_Description]:
    values = list(dict.fromkeys(column))
    for value in values:
        others = [other for other in values if other != value]
        lacks = f"{name} is {others[0]}" if len(others) == 1 else f"{name} is not {value}"
        yield VALUE, f"{name} is {value}", lacks, [option == value for option in column]
    for one, other in combinations(values, 2):
        words = f"{name} is {one} or {other}", f"{name} is neither {one} nor {other}"
        yield EITHER, *words, [option in (one, other) for option in column]


def _of_numbers(name: str, column: Sequence[float]) -> Iterator[_Description]:
    values = sorted(set(column))
    for below, above in pairwise(values):
        lacks = f"{name} = {below}" if below == values[0] else f"{name} ≤ {below}"
        holds = f"{name} > {below}" if above == below + 1 else f"{name} ≥ {above}"
        if above == values[-1]:
            holds = f"{name} = {above}"
        yield VALUE, holds, lacks, [number >= above for number in column]
    for value in values:
        truths = [number == value for number in column]
        yield EXACT, f"{name} = {value}", f"{name} ≠ {value}", truths


def _of_sizes(name: str, column: Sequence[int]) -> Iterator[_Description]:
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
