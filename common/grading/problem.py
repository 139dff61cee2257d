"""A case with its inputs drawn, the oracle's results, and eager's own error as the budget."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import combinations
from typing import Any

import torch

from common.arena import is_far
from common.draws import Draws
from common.grading import oracle
from common.grading.tolerance import FEW_ELEMENTS, Budget, budget_of, larger
from common.ops._draw import draw
from common.spec import Axis, Case, Op
from common.wire import OUTPUT as OUTPUT

DRAWS_OF_FEW = 8
"""Draws from which small tensors take their budget."""
Drawn = tuple[dict[str, Any], torch.Tensor]
"""The arguments of one call, and its upstream gradient."""
Solved = tuple[dict[str, torch.Tensor], dict[str, Budget]]
"""The truth and the budget of each result, by its name."""


@dataclass(frozen=True)
class Problem:
    """A case with its inputs drawn; the oracle's value and the budget of each result."""

    op: Op[Any]
    case: Case
    device: str
    """`cpu` or `cuda`: where the inputs are, and where results are compared."""
    arguments: dict[str, Any]
    grad_output: torch.Tensor
    solve: Callable[[], Solved] = field(repr=False)
    """Returns the truth and the budgets; called once, when a result is first compared."""
    draws: Draws
    """What is drawn for the case, the inputs too; see `seed`."""
    low_memory: bool = False
    """Whether the GPU's memory is scarce: the host's holds the truth and the results."""
    unchanged: frozenset[str] = frozenset()
    """The inputs that are those of the problem of which this is the other."""
    _lock: Any = field(default_factory=threading.Lock, repr=False, compare=False)
    """All threads that ask at once have the truth computed, and other inputs drawn, once."""

    @property
    def truth(self) -> Mapping[str, torch.Tensor]:
        """Return the oracle's results in float64; in host memory where the GPU's is scarce."""
        with self._lock:
            return self._solved[0]

    @property
    def budgets(self) -> Mapping[str, Budget]:
        """Return eager's error on each result."""
        with self._lock:
            return self._solved[1]

    @cached_property
    def _solved(self) -> Solved:
        return self.solve()

    @property
    def other(self) -> Problem:
        """Return the same case with other inputs, drawn once for all workers that are asked it.

        Some tensors stay as they are, so that what is kept under one of several does not fit the
        others. Its budgets are at least these: on few elements eager may be lucky.
        """
        with self._lock:
            return self._redrawn

    @property
    def seed(self) -> int:
        """Return the seed of the inputs."""
        return self.draws.number(self.op.name, self.case.name, "inputs")

    @property
    def summary(self) -> Problem:
        """Return the problem without the content of its inputs, and without the truth.

        Without a GPU it has no budgets either where no result was compared.
        """
        inputs = {name: value.to("meta") if isinstance(value, torch.Tensor) else value
                  for name, value in self.arguments.items()}  # fmt: skip
        budgets = dict(self.budgets) if "_solved" in vars(self) else {}
        grad_output = self.grad_output.to("meta")
        made = replace(self, arguments=inputs, grad_output=grad_output, solve=lambda: ({}, budgets))
        assert not made.truth
        return made

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of the results: `output`, and each argument that gets a gradient."""
        return OUTPUT, *(self.op.differentiable if "backward" in self.case.directions else ())

    @property
    def shapes(self) -> dict[str, torch.Size]:
        """Return the shape of each result."""
        return {
            name: (self.grad_output if name == OUTPUT else self.arguments[name]).shape
            for name in self.names
        }

    @property
    def far(self) -> bool:
        """Return whether the elements of an input lie gigabytes apart."""
        tensors = call_tensors(self.arguments, self.grad_output).values()
        return any(map(is_far, tensors))

    @cached_property
    def _redrawn(self) -> Problem:
        draws = Draws(self.draws.number(self.op.name, self.case.name, "other inputs"))
        dice = draws.dice("which")
        case, same = self.case.varied(dice), _some_of(self.arguments, dice)
        seed = draws.number(self.op.name, case.name, "inputs")
        arguments, grad_output = draw(self.op, case, seed, self.device)
        arguments |= {name: self.arguments[name] for name in same}

        # what the function below holds, but not this problem: its memory is freed with it
        op, low_memory, usual, drawn = (
            self.op,
            self.low_memory,
            self._solved[1],
            (arguments, grad_output),
        )

        def solve() -> Solved:
            truth, budgets = _solved(op, case, *drawn, low_memory)
            return truth, _larger(budgets, usual)

        return Problem(op, case, self.device, *drawn, solve, draws, low_memory, unchanged=same)

    def axes(self, name: str) -> tuple[Axis, ...]:
        """Return the dimensions of a result by name."""
        return self.op.axes(self.case, self.arguments)[name]

    def kept(self, result: torch.Tensor) -> torch.Tensor:
        """Return a copy of a result, in host memory where the GPU's is scarce."""
        return result.cpu() if self.low_memory and result.is_cuda else result.clone()

    @property
    def slack(self) -> float:
        """Return how many times eager's rms error a result of this case may have."""
        return self.op.slack[self.case.dtype]


def make_problem(
    op: Op[Any], case: Case, draws: Draws, device: str, low_memory: bool = False
) -> Problem:
    """Draw the case's inputs, and compute the oracle's results and the budgets.

    The oracle is the reference in float64; the budget is eager's error. On tensors of fewer than
    1,000 elements eager may be lucky, so its largest error of eight draws counts there.

    Without a GPU both are computed when a result is first compared: a solution that does not
    support the case never needs them.

    Args:
        op: The op.
        case: The case.
        draws: What is drawn for the case, which no solution may know.
        device: `cpu` or `cuda`.
        low_memory: Whether the GPU's memory is scarce: the host's holds the truth and the results.

    Raises:
        torch.OutOfMemoryError: The GPU's free memory does not hold the case.
    """
    seed = draws.number(op.name, case.name, "inputs")
    drawn = draw(op, case, seed, device)

    def solve() -> Solved:
        truth, budgets = _solved(op, case, *drawn, low_memory)
        if any(0 < tensor.numel() < FEW_ELEMENTS for tensor in truth.values()):
            for again in range(1, DRAWS_OF_FEW):
                _, others = _solved(op, case, *draw(op, case, seed + again, device), low_memory)
                budgets = _larger(budgets, others)
        return truth, budgets

    made = Problem(op, case, device, *drawn, solve, draws, low_memory)
    if device == "cuda":  # now, while there is room for it
        _ = made.truth
    return made


def _some_of(arguments: Mapping[str, Any], dice: random.Random) -> frozenset[str]:
    """Return the names of some of the tensors of numbers, drawn by lot; of one alone none."""
    tensors = {name: each for name, each in arguments.items() if isinstance(each, torch.Tensor)}
    numbers = [name for name, tensor in tensors.items() if tensor.is_floating_point()]
    parts = [part for size in range(1, len(numbers)) for part in combinations(numbers, size)]
    return frozenset(dice.choice(parts or [()]))


def call_tensors(arguments: dict[str, Any], grad_output: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return the tensors among a call's arguments, and the upstream gradient, by name."""
    tensors = {name: v for name, v in arguments.items() if isinstance(v, torch.Tensor)}
    return {**tensors, "upstream": grad_output}


def _solved(
    op: Op[Any], case: Case, arguments: dict[str, Any], grad_output: torch.Tensor, low_memory: bool
) -> Solved:
    """Return the oracle's results of one draw, and eager's error on each."""
    gradients = "backward" in case.directions
    truth = oracle.truth(op, arguments, grad_output, gradients)
    if low_memory:
        truth = {name: tensor.cpu() for name, tensor in truth.items()}
    eager = oracle.eager(op, arguments, grad_output, gradients)
    budgets = {
        name: budget_of(eager[name], right, case.sliced, grad_output.device)
        for name, right in truth.items()
    }
    return truth, budgets


def _larger(budgets: dict[str, Budget], others: Mapping[str, Budget]) -> dict[str, Budget]:
    return {name: larger(budget, others[name]) for name, budget in budgets.items()}
