"""A case with its inputs drawn, the oracle's results, and eager's own error as the budget."""

from __future__ import annotations

import secrets
import threading
from dataclasses import dataclass, field
from typing import Any

import torch

from common.arena import slot_like
from common.grading.tolerance import FEW_ELEMENTS, Budget, budget_of, larger
from common.ops._draw import draw
from common.spec import Case, Op
from common.wire import OUTPUT as OUTPUT

DRAWS_OF_FEW = 8
"""Draws from which small tensors take their budget."""


@dataclass(frozen=True)
class Problem:
    """A case with its inputs drawn; the oracle's value and the budget of each result."""

    op: Op[Any]
    case: Case
    arguments: dict[str, Any]
    upstream: torch.Tensor
    truth: dict[str, torch.Tensor]
    """By result, in float64."""
    budgets: dict[str, Budget]
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

    def _redrawn(self) -> Problem:
        drawn = draw(self.op, self.case, secrets.randbits(48), self.upstream.device.type)
        truth, budgets = _solved(self.op, self.case, *drawn)
        return Problem(self.op, self.case, *drawn, truth, _larger(budgets, self.budgets))

    @property
    def slack(self) -> float:
        """Return how many times eager's rms error a result of this case may have."""
        return self.op.slack[self.case.dtype]


def make_problem(op: Op[Any], case: Case, seed: int, device: str) -> Problem:
    """Draw the case's inputs, and compute the oracle's results and the budgets.

    The oracle is the reference in float64; the budget is eager's error. On tensors of fewer than
    1,000 elements eager may be lucky, so its largest error of eight draws counts there.

    Args:
        op: The op.
        case: The case.
        seed: The seed of the inputs, which no solution may know.
        device: `cpu` or `cuda`.
    """
    drawn = draw(op, case, seed, device)
    truth, budgets = _solved(op, case, *drawn)
    if any(0 < tensor.numel() < FEW_ELEMENTS for tensor in truth.values()):
        for again in range(1, DRAWS_OF_FEW):
            _, others = _solved(op, case, *draw(op, case, seed + again, device))
            budgets = _larger(budgets, others)
    return Problem(op, case, *drawn, truth, budgets)


def _solved(
    op: Op[Any], case: Case, arguments: dict[str, Any], upstream: torch.Tensor
) -> tuple[dict[str, torch.Tensor], dict[str, Budget]]:
    """Return the oracle's results of one draw, and eager's error on each."""
    gradients = "backward" in case.directions
    truth = solve(op, arguments, upstream, double=True, gradients=gradients)
    eager = solve(op, arguments, upstream, gradients=gradients)
    return truth, {name: budget_of(eager[name], truth[name], case.sliced) for name in truth}


def _larger(budgets: dict[str, Budget], others: dict[str, Budget]) -> dict[str, Budget]:
    return {name: larger(budget, others[name]) for name, budget in budgets.items()}


def solve(
    op: Op[Any],
    arguments: dict[str, Any],
    upstream: torch.Tensor,
    double: bool = False,
    gradients: bool = True,
) -> dict[str, torch.Tensor]:
    """Return the reference's output and gradients, by name.

    Args:
        op: The op.
        arguments: The arguments of one call.
        upstream: The gradient of the output.
        double: Make every floating-point argument float64, rope's freqs too: that is the oracle.
        gradients: Compute them too; without, the output alone costs a third of the work.
    """

    def prepared(name: str, value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or not value.is_floating_point():
            return value
        # cuBLAS leaves its memory where rows lie 2^30 elements apart: "illegal memory access"
        value = value.double() if double else _gathered(value)
        return value.detach().requires_grad_(gradients and name in op.differentiable)

    ready = {name: prepared(name, value) for name, value in arguments.items()}
    output = op.reference(**ready)
    if not gradients:
        return {OUTPUT: output}
    wanted = [ready[name] for name in op.differentiable]
    found = torch.autograd.grad(output, wanted, upstream.double() if double else upstream)
    return {OUTPUT: output.detach(), **dict(zip(op.differentiable, found, strict=True))}


def _gathered(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor, or its elements side by side where they lie gigabytes apart."""
    return tensor.contiguous() if slot_like(tensor, 0).far else tensor
