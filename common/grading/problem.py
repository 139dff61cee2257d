"""A case with its inputs drawn, the oracle's results, and eager's own error as the budget."""

from __future__ import annotations

import secrets
import threading
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from common.grading import oracle
from common.grading.chunks import on_host
from common.grading.tolerance import FEW_ELEMENTS, Budget, budget_of, larger
from common.ops._draw import draw
from common.spec import Axis, Case, Op
from common.wire import OUTPUT as OUTPUT

DRAWS_OF_FEW = 8
"""Draws from which small tensors take their budget."""


@dataclass(frozen=True)
class Problem:
    """A case with its inputs drawn; the oracle's value and the budget of each result."""

    op: Op[Any]
    case: Case
    device: str
    """`cpu` or `cuda`: where the inputs are, and where results are compared."""
    arguments: dict[str, Any]
    upstream: torch.Tensor
    truth: dict[str, torch.Tensor]
    """By result, in float64; in host memory where the GPU's is scarce."""
    budgets: dict[str, Budget]
    frugal: bool = False
    """Whether the GPU's memory is scarce: the host's holds the truth and the results."""
    seed: int | None = None
    """The seed from which the inputs can be drawn again."""
    _others: list[Problem] = field(default_factory=list, repr=False, compare=False)
    _lock: Any = field(default_factory=threading.Lock, repr=False, compare=False)

    @property
    def other(self) -> Problem:
        """Return the same case with other inputs, drawn once for all workers that are asked it.

        Its budgets are at least these: on few elements eager may be lucky.
        """
        with self._lock:
            if not self._others:
                self._others.append(self._redrawn())
            return self._others[0]

    @property
    def outline(self) -> Problem:
        """Return the problem without its inputs and the oracle's values, which take memory."""
        nothing = self.upstream.to("meta")
        truth = {name: tensor.to("meta") for name, tensor in self.truth.items()}
        return replace(self, arguments={}, upstream=nothing, truth=truth, _others=[])

    def _redrawn(self) -> Problem:
        seed = secrets.randbits(48)
        drawn = draw(self.op, self.case, seed, self.device)
        truth, budgets = _solved(self.op, self.case, *drawn, self.frugal)
        budgets = _larger(budgets, self.budgets)
        return Problem(self.op, self.case, self.device, *drawn, truth, budgets, self.frugal, seed)

    def axes(self, name: str) -> tuple[Axis, ...]:
        """Return the dimensions of a result by name."""
        return self.op.axes(self.case, self.arguments)[name]

    def kept(self, result: torch.Tensor) -> torch.Tensor:
        """Return a copy of a result, in host memory where the GPU's is scarce."""
        return on_host(result) if self.frugal and result.is_cuda else result.clone()

    @property
    def slack(self) -> float:
        """Return how many times eager's rms error a result of this case may have."""
        return self.op.slack[self.case.dtype]


def make_problem(op: Op[Any], case: Case, seed: int, device: str, frugal: bool = False) -> Problem:
    """Draw the case's inputs, and compute the oracle's results and the budgets.

    The oracle is the reference in float64; the budget is eager's error. On tensors of fewer than
    1,000 elements eager may be lucky, so its largest error of eight draws counts there.

    Args:
        op: The op.
        case: The case.
        seed: The seed of the inputs, which no solution may know.
        device: `cpu` or `cuda`.
        frugal: Whether the GPU's memory is scarce: the host's holds the truth and the results.

    Raises:
        torch.OutOfMemoryError: The GPU's free memory does not hold the case.
    """
    drawn = draw(op, case, seed, device)
    truth, budgets = _solved(op, case, *drawn, frugal)
    if any(0 < tensor.numel() < FEW_ELEMENTS for tensor in truth.values()):
        for again in range(1, DRAWS_OF_FEW):
            _, others = _solved(op, case, *draw(op, case, seed + again, device), frugal)
            budgets = _larger(budgets, others)
    return Problem(op, case, device, *drawn, truth, budgets, frugal, seed)


def _solved(
    op: Op[Any], case: Case, arguments: dict[str, Any], upstream: torch.Tensor, frugal: bool
) -> tuple[dict[str, torch.Tensor], dict[str, Budget]]:
    """Return the oracle's results of one draw, and eager's error on each."""
    gradients = "backward" in case.directions
    truth = oracle.truth(op, arguments, upstream, gradients)
    if frugal:
        truth = {name: on_host(tensor) for name, tensor in truth.items()}
    eager = oracle.eager(op, arguments, upstream, gradients)
    budgets = {
        name: budget_of(eager[name], right, case.sliced, upstream.device)
        for name, right in truth.items()
    }
    return truth, budgets


def _larger(budgets: dict[str, Budget], others: dict[str, Budget]) -> dict[str, Budget]:
    return {name: larger(budget, others[name]) for name, budget in budgets.items()}
