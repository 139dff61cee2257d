"""The outcome of one case: a solution's verdicts on it, or that it does not fit the device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from common.grading.problem import Problem
from common.grading.second_try import Verdicts
from common.grading.worker import Worker
from common.solutions import Solution
from common.spec import Case, Op


@dataclass(frozen=True)
class Graded:
    """The verdicts of one solution on one case, with the worker and the problem's outline."""

    worker: Worker
    problem: Problem
    verdicts: Verdicts
    differentiable: frozenset[bool] = frozenset()
    """Whether outputs of the solution's cases so far could be differentiated: {False} if none."""

    @property
    def solution(self) -> Solution:
        """Return the solution that was graded."""
        return self.worker.solution

    @property
    def case(self) -> Case:
        """Return the case that it was graded on."""
        return self.problem.case


@dataclass(frozen=True)
class TooLarge:
    """A case that does not fit the device, not even with one solution at a time."""

    op: Op[Any]
    case: Case
    reason: str
