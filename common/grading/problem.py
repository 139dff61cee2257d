"""A case with drawn inputs, the oracle's results, and eager's error as the budget."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from typing import Any

import torch

from common.arena import is_far
from common.draws import Draws
from common.grading import oracle
from common.grading.tolerance import FEW_ELEMENTS, Budget, budget_of, larger
from common.ops._draw import draw
from common.spec import Axis, Case, Op

DRAWS_OF_FEW = 8
"""The number of draws for the budget of small tensors."""
Drawn = tuple[dict[str, Any], oracle.Upstream]
"""The arguments of one call, and its upstream gradients."""
Solved = tuple[dict[str, torch.Tensor], dict[str, Budget]]
"""The truth and the budget of each result, by name."""


@dataclass(frozen=True)
class Problem:
    """A case with drawn inputs, and the truth (from the oracle) and the budget of each result."""

    op: Op[Any]
    case: Case
    device: str
    """`cpu` or `cuda`: the device of the inputs and of the comparison of results."""
    arguments: dict[str, Any]
    upstream: oracle.Upstream
    draws: Draws
    """The random numbers of the case, including the seed of its inputs."""
    scarce: bool = False
    """Whether GPU memory is scarce: then one call is live at a time, and the truth and the copies
    of results are in host memory."""
    forward_only: bool = False
    """Whether gradients are not compared, although the case may have some."""
    least: Mapping[str, Budget] | None = field(default=None, repr=False)
    """The least budgets, if another problem has other values; see `variations.py`."""
    unchanged: frozenset[str] = frozenset()
    """The inputs of another problem that this one shares; see `variations.py`."""
    changes: dict[Any, Problem] = field(default_factory=dict, init=False, repr=False)
    """The problems with changed inputs that are drawn already, by their change."""
    lock: Any = field(default_factory=threading.Lock, repr=False, compare=False)
    """Threads compute the truth and draw other inputs only once."""

    @property
    def truth(self) -> Mapping[str, torch.Tensor]:
        """Return the oracle's results in float64, in host memory if GPU memory is scarce."""
        with self.lock:
            return self.solved[0]

    @property
    def budgets(self) -> Mapping[str, Budget]:
        """Return eager's error on each result."""
        with self.lock:
            return self.solved[1]

    @cached_property
    def solved(self) -> Solved:
        """The truth and the budgets, computed before the first comparison; hold `lock`.

        For tensors of fewer than 1,000 elements, on which eager may be lucky, the budget is its
        largest error over eight draws, or at least another problem's budget.
        """
        gradients = "backward" in self.case.directions and not self.forward_only
        drawn = self.arguments, self.upstream
        truth, budgets = _solve(self.op, gradients, self.case.by_slice, self.scarce, *drawn)
        others: Sequence[Mapping[str, Budget]] = [self.least] if self.least else []
        if not others and any(0 < each.numel() < FEW_ELEMENTS for each in truth.values()):
            others = _further_budgets(self.op, self.case, self.device, gradients)
        for other in others:
            budgets = {name: larger(budget, other[name]) for name, budget in budgets.items()}
        return truth, budgets

    @property
    def summary(self) -> Problem:
        """Return the problem with inputs on the meta device, and without the truth.

        On a CPU it also has no budgets if no result was compared.
        """
        budgets = dict(self.budgets) if "solved" in vars(self) else {}
        tensors = {name: tensor.to("meta") for name, tensor in self.tensors.items()}
        upstream = {name: tensors.pop(name) for name in self.upstream}
        summary = replace(self, arguments=self.arguments | tensors, upstream=upstream)
        vars(summary)["solved"] = {}, budgets
        return summary

    @property
    def tensors(self) -> dict[str, torch.Tensor]:
        """Return the tensor arguments and the upstream gradients."""
        return call_tensors(self.arguments, self.upstream)

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of the results: the outputs, and the arguments with a gradient."""
        gradients = self.op.differentiable if "backward" in self.case.directions else ()
        return *self.op.outputs(self.case), *gradients

    @property
    def shapes(self) -> dict[str, torch.Size]:
        """Return the shape of each result."""
        outputs = self.op.outputs(self.case)
        return {
            name: torch.Size(outputs[name]) if name in outputs else self.arguments[name].shape
            for name in self.names
        }

    @property
    def far(self) -> bool:
        """Return whether the elements of an input are gigabytes apart."""
        return any(map(is_far, self.tensors.values()))

    def axes(self, name: str) -> tuple[Axis, ...]:
        """Return the axes of the result `name`."""
        return self.op.axes(self.case, self.arguments)[name]

    def kept(self, result: torch.Tensor) -> torch.Tensor:
        """Return a copy of a result, in host memory if GPU memory is scarce."""
        return result.to("cpu" if self.scarce else self.device, copy=True)

    @property
    def slack(self) -> float:
        """Return the largest allowed ratio of a result's rms error to eager's."""
        return self.op.slack[self.case.dtype]


def make_problem(
    op: Op[Any], case: Case, draws: Draws, device: str, scarce: bool = False
) -> Problem:
    """Draw the case's inputs, and on a GPU compute the oracle's results and the budgets.

    On a CPU both are computed at the first comparison, since a solution that does not support the
    case never needs them. No solution may know the draws.

    Raises:
        torch.OutOfMemoryError: The case does not fit in the GPU's free memory.
    """
    problem = Problem(op, case, device, *drawn(op, case, draws, device), draws, scarce)
    if device == "cuda":  # compute the truth now, while memory is available
        _ = problem.truth
    return problem


def drawn(op: Op[Any], case: Case, draws: Draws, device: str) -> Drawn:
    """Draw the inputs of a case, by a run's random numbers."""
    return draw(op, case, draws.number(op.name, case.name, "inputs"), device)


def call_tensors(arguments: dict[str, Any], upstream: oracle.Upstream) -> dict[str, torch.Tensor]:
    """Return a call's tensor arguments and its upstream gradients, by name."""
    tensors = {name: v for name, v in arguments.items() if isinstance(v, torch.Tensor)}
    return {**tensors, **upstream}


@cache
def _further_budgets(
    op: Op[Any], case: Case, device: str, gradients: bool
) -> list[dict[str, Budget]]:
    """Return the budgets of a small case's further draws, which are the same each time."""
    draws = (draw(op, case, seed, device) for seed in range(1, DRAWS_OF_FEW))
    return [_solve(op, gradients, case.by_slice, False, *drawn)[1] for drawn in draws]


def _solve(
    op: Op[Any],
    gradients: bool,
    by_slice: bool,
    scarce: bool,
    arguments: dict[str, Any],
    upstream: oracle.Upstream,
) -> Solved:
    """Return the oracle's results for one draw, and eager's error on each result."""
    truth = oracle.truth(op, arguments, upstream, gradients)
    if scarce:
        truth = {name: tensor.cpu() for name, tensor in truth.items()}
    eager = oracle.eager(op, arguments, upstream, gradients)
    device = next(iter(upstream.values())).device
    return truth, {
        name: budget_of(eager[name], expected, by_slice, device) for name, expected in truth.items()
    }
