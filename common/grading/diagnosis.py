"""What a solution's failures come of: a mistake that the op names, or one property of a case.

A mistake is a reference that is wrong in one way. It explains a solution's direction if the wrong
results are right by the numeric rule under it, in every case, and if it changes nothing in the
cases that pass. It is said only where each other mistake fails to in FEWEST cases, so that none is
a guess. For example "the sine has the other sign" in 60 cases, while "the sine is left out" is
right in none.

Two mistakes may give the same in all cases that a solution answers. Then the one counts that
explains the other direction too: where forward passes, a gradient that is the upstream one does not
come of a forward that returns its input. Where that tells nothing, both are said.

A failing case that nothing explains is graded without each of its properties. That serves failures
which are too few for `when`: one failing case of float16 says nothing of float16, but the same case
in float32 does if it passes.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

import torch

from common import ops
from common.grading import oracle
from common.grading.grade import FEW
from common.grading.problem import OUTPUT, Problem
from common.grading.sweep import Graded, Sweep
from common.grading.tolerance import Budget, budget_of, check_values, larger
from common.ops._draw import draw
from common.solutions import Solution
from common.spec import DIRECTIONS, Case, Direction, Op, Reference
from common.verdicts import Verdict

FEWEST = 2
"""The cases that a cause needs, and those that must tell it apart from each other mistake."""
MOST = 2
"""The mistakes that are said where the cases do not tell them apart."""
TRIES = 3
"""A case is graded so often for a contrast, since what is asked of it is drawn: the failing one
must fail each time, the other one must pass each time."""
Results = oracle.Results
T = TypeVar("T")


class Diagnosis(NamedTuple):
    """The mistake, or either of two, that a solution's wrong results come of."""

    solution: str
    directions: tuple[Direction, ...]
    mistake: str

    def __str__(self) -> str:
        """Return the line that `check` prints."""
        where = " and ".join(self.directions)
        return f"{self.solution} {where}: likely cause: {self.mistake}"


def causes(found: Iterable[Graded]) -> Iterator[Diagnosis]:
    """Yield the cause of each solution's wrong results, where it is one of the op's mistakes.

    Args:
        found: The cases as `grade(..., keep=True)` found them, of any solutions and ops.
    """
    by_solution: dict[str, list[Graded]] = defaultdict(list)
    for graded in found:
        by_solution[graded.solution.name].append(graded)
    for solution, several in by_solution.items():
        named: dict[str, list[Direction]] = defaultdict(list)
        for direction in DIRECTIONS:
            if mistake := _cause(several, direction):
                named[mistake].append(direction)
        for mistake, directions in named.items():
            yield Diagnosis(solution, tuple(directions), mistake)


def explanations(
    mistakes: Iterable[str],
    wrong: Sequence[T],
    right: Iterable[T],
    explains: Callable[[str, T], bool],
) -> list[str]:
    """Return the mistakes that explain every case, if all others fail in FEWEST of them.

    Args:
        mistakes: The names of the mistakes.
        wrong: The cases with wrong results; those that are quickest to judge come first.
        right: The cases with right results.
        explains: Whether a mistake gives a case's results; asked as seldom as possible.
    """
    failed = Counter(dict.fromkeys(mistakes, 0))
    if len(wrong) < FEWEST:
        return []
    for case in (*wrong, *right):
        if 0 not in failed.values():
            return []
        for mistake, times in failed.items():
            if times < FEWEST and not explains(mistake, case):
                failed[mistake] += 1
    left = [mistake for mistake, times in failed.items() if times < FEWEST]
    return [] if any(failed[mistake] for mistake in left) else left


# --- mistakes -------------------------------------------------------------------------------------


def _cause(several: Sequence[Graded], direction: Direction) -> str | None:
    """Return the cause of one solution's wrong results in one direction."""
    mistakes = ops.load_mistakes(several[0].problem.op.name)

    def explains(mistake: str, case: _Judged) -> bool:
        return case.explained_by(mistakes[mistake])

    wrong, right = _judged(several, direction)
    left = explanations(mistakes, wrong, right, explains)
    if len(left) > 1:
        (other,) = {*DIRECTIONS} - {direction}
        other_cases = [case for cases in _judged(several, other) for case in cases]
        left = [each for each in left if all(explains(each, case) for case in other_cases)] or left
    return ", or: ".join(left) if 0 < len(left) <= MOST else None


def _judged(several: Iterable[Graded], direction: Direction) -> tuple[list[_Judged], list[_Judged]]:
    """Return the wrong cases of a direction and the right ones, the smallest first."""
    cases = [_Judged(graded.problem, graded.verdicts[direction]) for graded in several
             if direction in graded.verdicts and not graded.case.span]  # fmt: skip
    cases = sorted((case for case in cases if 0 < case.size <= FEW), key=lambda case: case.size)
    wrong, right = (
        [case for case in cases if case.verdict.verdict == verdict]
        for verdict in ("INCORRECT_NUMERICAL", "PASSED")
    )
    return wrong, right


@dataclass(frozen=True)
class _Judged:
    """One direction of a graded case, whose inputs are drawn again."""

    problem: Problem
    verdict: Verdict

    @property
    def names(self) -> list[str]:
        """The results of the direction."""
        backward = self.verdict.direction == "backward"
        return [name for name in self.problem.names if (name != OUTPUT) == backward]

    @property
    def size(self) -> int:
        """The elements of the results."""
        return sum(self.problem.shapes[name].numel() for name in self.names)

    def explained_by(self, mistake: Reference) -> bool:
        """Return whether the results are right under a mistake, and not right without it.

        Where the case passes, whether the mistake's own results would pass.
        """
        if self.verdict.verdict == "PASSED":
            return self._would_pass(mistake)
        return not self.unexplained and self._are_right(mistake)

    def _would_pass(self, mistake: Reference) -> bool:
        """Return whether a mistake's results, rounded, are right by the numeric rule."""
        dtype = getattr(torch, self.problem.case.dtype)
        try:
            made = self._results_of(mistake)
        except NotImplementedError:
            return False
        truth, budgets, slack = self._truth, self.problem.budgets, self.problem.slack
        return all(
            _is_right(made[name].to(dtype), truth[name], budgets[name], slack)
            for name in self.names
        )

    @cached_property
    def _truth(self) -> Results:
        return self._results_of(self.problem.op.reference)

    @cached_property
    def unexplained(self) -> bool:
        """Whether it fails though the first call's results are right, or there are none."""
        return not self.verdict.results or self._are_right(self.problem.op.reference)

    def _are_right(self, reference: Reference) -> bool:
        """Return whether the results are those of a reference, by the numeric rule."""
        try:
            expected = self._results_of(reference)
        except NotImplementedError:
            return False
        results, usual, slack = self.verdict.results, self.problem.budgets, self.problem.slack

        def wrong(names: Iterable[str], budgets: Mapping[str, Budget]) -> list[str]:
            return [
                name
                for name in names
                if not _is_right(results[name], expected[name], budgets[name], slack)
            ]

        left = wrong(self.names, usual)
        return not left or not wrong(left, self._budgets_of(reference, expected))

    def _results_of(self, reference: Reference) -> Results:
        op = dataclasses.replace(self.problem.op, reference=reference)
        return oracle.truth(op, *self._inputs, self.verdict.direction == "backward")

    def _budgets_of(self, reference: Reference, expected: Results) -> dict[str, Budget]:
        """Return eager's error under a mistake, or without it where that is larger.

        Under a mistake the values may be larger, or not zero where the op's are.
        """
        op = dataclasses.replace(self.problem.op, reference=reference)
        arguments, grad_output = self._inputs
        # as dense as in the oracle: a view with another's strides may end outside of its memory
        dense = {name: value.clone() if isinstance(value, torch.Tensor) else value
                 for name, value in arguments.items()}  # fmt: skip
        eager = oracle.eager(op, dense, grad_output, self.verdict.direction == "backward")
        sliced, usual = self.problem.case.sliced, self.problem.budgets
        own = {name: budget_of(eager[name], expected[name], sliced) for name in self.names}
        return {
            name: larger(budget, usual[name]) if math.isfinite(budget.largest) else usual[name]
            for name, budget in own.items()
        }

    @cached_property
    def _inputs(self) -> tuple[dict[str, Any], torch.Tensor]:
        """The arguments and the upstream gradient."""
        problem = self.problem
        return draw(problem.op, problem.case, problem.seed, problem.device)


def _is_right(result: torch.Tensor, expected: torch.Tensor, budget: Budget, slack: float) -> bool:
    """Return whether a result is right by the numeric rule; infinity and NaN are where expected."""
    result = result.to(expected.device)
    same = (result == expected) | (result.isnan() & expected.isnan())
    if same.all():
        return True
    result, expected = result.masked_fill(same, 0), expected.masked_fill(same, 0)
    return check_values(result, expected, budget, slack)[0] is None


# --- contrasts ------------------------------------------------------------------------------------


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
    fields: dict[str, Any] = {field.name: field.default for field in dataclasses.fields(case)}
    sizes = {*case.sizes, *case.lists, *case.joined}
    single = [(name,) for name in fields if name not in sizes]
    for names in (*single, case.joined):
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
    cases: dict[Case, str] = {}
    for case in plainer(failing.case):
        facts = op.facts(case)
        changes = [f"{name} {facts[name]} in place of {before[name]}"
                   for name in facts if facts[name] != before[name]]  # fmt: skip
        if changes and 0 not in op.output(case):
            cases[case] = " and ".join(changes)
    return cases


def _answers(sweep: Sweep, failing: Failing, cases: Iterable[Case]) -> list[tuple[Case, bool]]:
    """Return each case with whether it passes in the directions that fail; not too large ones."""
    graded = sweep.grade(failing.op, cases, [failing.solution])
    return [
        (each.case, all(each.verdicts[one].verdict == "PASSED" for one in failing.directions))
        for each in graded
        if isinstance(each, Graded) and each.verdicts.keys() >= set(failing.directions)
    ]
