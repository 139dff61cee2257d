"""The properties without which a failing case passes, found by grading it without each of them.

It serves the failures that are too few for `when`: one failing case of float16 says nothing of
float16, but the same case in float32 does if it passes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from common.grading.sweep import Graded, Sweep
from common.solutions import Solution
from common.spec import Case, Direction, Op

TRIES = 3
"""Each case is graded so often, since what is asked of it is drawn: the failing one must fail each
time, the other one must pass each time."""


@dataclass(frozen=True)
class Failing:
    """A case on which a solution fails in these directions."""

    solution: Solution
    op: Op[Any]
    case: Case
    directions: tuple[Direction, ...]


@dataclass(frozen=True)
class Contrast:
    """The changes of a failing case with each of which alone it passes."""

    failing: Failing
    changes: tuple[str, ...]

    def __str__(self) -> str:
        """Return the line that `check` prints."""
        where = f"{self.failing.solution.name} {' and '.join(self.failing.directions)}"
        return f"{where}: {self.failing.case.name} passes with {', or with '.join(self.changes)}"


def contrasts(sweep: Sweep, several: Iterable[Failing]) -> Iterator[Contrast]:
    """Yield each failing case that passes without one of its properties.

    Far views are left out: each takes gigabytes of addresses, and its failure names them.
    """
    for failing in several:
        if failing.case.span or not (others := _others(failing)):
            continue
        # each try draws anew: one call that has a case several times asks the same of it
        tries = (_answers(sweep, failing, [failing.case]) for _ in range(TRIES))
        if any(answers != [(failing.case, False)] for answers in tries):
            continue
        left = list(others)
        for _ in range(TRIES):
            left = [case for case, passed in _answers(sweep, failing, left) if passed]
        if left:
            yield Contrast(failing, tuple(others[case] for case in left))


def plainer(case: Case) -> Iterator[Case]:
    """Yield the case with one property at its default, of each property that has another value.

    Sizes stay, but of several sequences the first half makes a case too.
    """
    fields: dict[str, Any] = {each.name: each.default for each in dataclasses.fields(case)}
    sizes = {*case.sizes, *case.lists, *case.joined}
    alone = [(name,) for name in fields if name not in sizes]
    for names in (*alone, case.joined):
        changed = {name: fields[name] for name in names if fields[name] is not dataclasses.MISSING}
        if any(getattr(case, name) != value for name, value in changed.items()):
            yield dataclasses.replace(case, **changed)
    for name in case.lists:
        if half := getattr(case, name)[: len(getattr(case, name)) // 2]:
            yield dataclasses.replace(case, **{name: half})


def _others(failing: Failing) -> dict[Case, str]:
    """Return the plainer cases that have an element, each with its change in words.

    A change that has no word, as of the clock that ranks the case, is none.
    """
    op, before = failing.op, failing.op.facts(failing.case)
    found: dict[Case, str] = {}
    for case in plainer(failing.case):
        facts = op.facts(case)
        changes = [f"{name} {facts[name]} in place of {before[name]}"
                   for name in facts if facts[name] != before[name]]  # fmt: skip
        if changes and 0 not in op.output(case):
            found[case] = " and ".join(changes)
    return found


def _answers(sweep: Sweep, failing: Failing, cases: Iterable[Case]) -> list[tuple[Case, bool]]:
    """Return each case with whether it passes in the directions that fail; not too large ones."""
    graded = sweep.grade(failing.op, cases, [failing.solution])
    return [
        (each.case, all(each.verdicts[one].verdict == "PASSED" for one in failing.directions))
        for each in graded
        if isinstance(each, Graded) and each.verdicts.keys() >= set(failing.directions)
    ]
