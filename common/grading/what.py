"""The mistake that wrong results come of, found among those that the op's file of mistakes names.

A mistake explains a solution's direction if the wrong results are right by the numeric rule under
it, in every case, and if it changes nothing in the cases that pass. It is said only where each
other mistake fails to in FEWEST cases, so that none is a guess. For example "the sine has the other
sign" in 60 cases, while "the sine is left out" is right in none.

Two mistakes may give the same in all cases that a solution answers. Then the one counts that
explains the other direction too: where forward passes, a gradient that is the upstream one does not
come of a forward that returns its input. Where that tells nothing, both are said.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import torch

from common import ops
from common.grading import oracle
from common.grading.grade import FEW
from common.grading.problem import OUTPUT, Problem
from common.grading.tolerance import Budget, budget_of, check_values, larger
from common.ops._draw import draw
from common.spec import DIRECTIONS, Direction, Reference
from common.verdicts import Verdict

if TYPE_CHECKING:
    from common.grading.sweep import Graded

FEWEST = 2
"""The cases that a cause needs, and those that must tell it apart from each other mistake."""
MOST = 2
"""The mistakes that are said where the cases do not tell them apart."""
Results = oracle.Results
T = TypeVar("T")


class Cause(NamedTuple):
    """The mistake, or either of two, that a solution's wrong results come of."""

    solution: str
    directions: tuple[Direction, ...]
    mistake: str

    def __str__(self) -> str:
        """Return the line that `check` prints."""
        where = " and ".join(self.directions)
        return f"{self.solution} {where}: this is what comes of: {self.mistake}"


def causes(found: Iterable[Graded]) -> Iterator[Cause]:
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
            yield Cause(solution, tuple(directions), mistake)


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


# --- cases ----------------------------------------------------------------------------------------


def _cause(several: Sequence[Graded], direction: Direction) -> str | None:
    """Return the cause of one solution's wrong results in one direction."""
    mistakes = ops.load_mistakes(several[0].problem.op.name)

    def explains(mistake: str, case: _Judged) -> bool:
        return case.explained_by(mistakes[mistake])

    wrong, right = _judged(several, direction)
    left = explanations(mistakes, wrong, right, explains)
    if len(left) > 1:
        (other,) = {*DIRECTIONS} - {direction}
        beside = [case for cases in _judged(several, other) for case in cases]
        left = [each for each in left if all(explains(each, case) for case in beside)] or left
    return ", or: ".join(left) if 0 < len(left) <= MOST else None


def _judged(several: Iterable[Graded], direction: Direction) -> tuple[list[_Judged], list[_Judged]]:
    """Return the wrong cases of a direction and the right ones, the smallest first."""
    cases = [_Judged(each.problem, each.verdicts[direction]) for each in several
             if direction in each.verdicts and not each.case.span]  # fmt: skip
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
        return [name for name in self.problem.truth if (name != OUTPUT) == backward]

    @property
    def size(self) -> int:
        """The elements of the results."""
        return sum(self.problem.truth[name].numel() for name in self.names)

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
        arguments, upstream = self._inputs
        # as dense as in the oracle: a view with another's strides may end outside of its memory
        dense = {name: value.clone() if isinstance(value, torch.Tensor) else value
                 for name, value in arguments.items()}  # fmt: skip
        eager = oracle.eager(op, dense, upstream, self.verdict.direction == "backward")
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
