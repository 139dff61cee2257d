"""A case with drawn inputs, the oracle's results, and eager's error as the budget."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cached_property, partial
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

DTYPES = ("bfloat16", "float16", "float32")
"""The dtypes of cases, the least precise first."""
LARGEST_HALF = 100.0
"""The largest input of a case that may be drawn again in float16, so that no product overflows."""
DRAWS_OF_FEW = 8
"""The number of draws for the budget of small tensors."""
Drawn = tuple[dict[str, Any], torch.Tensor]
"""The arguments of one call, and its upstream gradient."""
Solved = tuple[dict[str, torch.Tensor], dict[str, Budget]]
"""The truth and the budget of each result, by name."""


class Change(Enum):
    """The difference between a call's inputs and those of an earlier call; the value names it."""

    WRITTEN = "other inputs"
    """Other values are written into the earlier tensors, except into some that stay unchanged."""
    REPLACED = "replacement"
    """The earlier tensors are freed, and tensors with other values lie at their addresses."""
    FLOAT16 = "float16"
    """The tensors without a gradient are the same, the others have this more precise dtype."""
    FLOAT32 = "float32"
    """The same in another dtype."""

    @property
    def dtype(self) -> str:
        """The dtype of a change of dtype; "" for the other changes."""
        return self.value if self in (Change.FLOAT16, Change.FLOAT32) else ""


@dataclass(frozen=True)
class Problem:
    """A case with drawn inputs, and the truth (from the oracle) and the budget of each result."""

    op: Op[Any]
    case: Case
    device: str
    """`cpu` or `cuda`: the device of the inputs and of the comparison of results."""
    arguments: dict[str, Any]
    grad_output: torch.Tensor
    solve: Callable[[], Solved] = field(repr=False)
    """Returns the truth and the budgets; called once, before the first comparison."""
    draws: Draws
    """The random numbers of the case, including the seed of its inputs."""
    scarce: bool = False
    """Whether GPU memory is scarce: then one call is live at a time, and the truth and the copies
    of results are in host memory."""
    unchanged: frozenset[str] = frozenset()
    """The names of the inputs that `changed` has copied from the original problem."""
    _changed: dict[Change, Problem] = field(default_factory=dict, init=False, repr=False)
    _lock: Any = field(default_factory=threading.Lock, repr=False, compare=False)
    """Threads compute the truth and draw other inputs only once."""

    @property
    def truth(self) -> Mapping[str, torch.Tensor]:
        """Return the oracle's results in float64, in host memory if GPU memory is scarce."""
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

    def changed(self, change: Change) -> Problem:
        """Return the problem with changed inputs, which are drawn once for all workers.

        Only a problem with `WRITTEN` inputs has gradients.
        """
        with self._lock:
            if change not in self._changed:
                self._changed[change] = self._redrawn(change)
            return self._changed[change]

    def allows(self, change: Change) -> bool:
        """Return whether the inputs can change like this.

        If the elements of an input are gigabytes apart, none can. A dtype changes only to a more
        precise one, in which rounded tables are wrong, and whose range includes the inputs.
        """
        if self.far or not change.dtype:
            return not self.far
        finer = DTYPES.index(change.dtype) > DTYPES.index(self.case.dtype)
        inputs = [self.arguments[name] for name in self.op.differentiable]
        in_range = change is Change.FLOAT32 or all(
            bool((tensor.abs() < LARGEST_HALF).all()) for tensor in inputs
        )
        return finer and bool(self._constant) and in_range

    def _redrawn(self, change: Change) -> Problem:
        """Draw the problem with changed inputs.

        Some written tensors stay unchanged, to expose a solution that caches results under one of
        its inputs. In the same dtype the budgets are at least this problem's, since eager may be
        lucky on few elements.
        """
        draws = Draws(self.draws.number(self.op.name, self.case.name, change.value))
        dice = draws.dice("which")
        case, unchanged = self.case.changed(dice), frozenset[str]()
        if change is Change.WRITTEN:  # a nonempty proper subset of the floating-point tensors
            floating = [name for name, tensor in self.tensors.items() if tensor.is_floating_point()]
            floating.remove("upstream")
            sizes = range(1, len(floating))
            subsets = [names for size in sizes for names in combinations(floating, size)]
            unchanged = frozenset(dice.choice(subsets or [()]))
        elif change.dtype:
            case, unchanged = replace(self.case, dtype=change.dtype), self._constant
        seed = draws.number(self.op.name, case.name, "inputs")
        drawn = draw(self.op, case, seed, self.device)
        drawn[0].update({name: self.arguments[name] for name in unchanged})

        # `solve` must not hold this problem, whose memory is freed with its last reference
        gradients = change is Change.WRITTEN and "backward" in case.directions
        of = self.op, case, drawn, gradients, self.scarce
        solve = partial(_solve, *of, seed=seed) if change.dtype else (
            partial(_solve, *of, least=self._solved[1])
        )  # fmt: skip
        return Problem(self.op, case, self.device, *drawn, solve, draws, self.scarce, unchanged)

    @property
    def seed(self) -> int:
        """Return the seed of the inputs."""
        return self.draws.number(self.op.name, self.case.name, "inputs")

    @property
    def summary(self) -> Problem:
        """Return the problem with inputs on the meta device, and without the truth.

        On a CPU it also has no budgets if no result was compared.
        """
        budgets = dict(self.budgets) if "_solved" in vars(self) else {}
        tensors = {name: tensor.to("meta") for name, tensor in self.tensors.items()}
        upstream = tensors.pop("upstream")
        return replace(
            self, arguments=self.arguments | tensors, grad_output=upstream,
            solve=lambda: ({}, budgets),
        )  # fmt: skip

    @property
    def tensors(self) -> dict[str, torch.Tensor]:
        """Return the tensor arguments and, as `upstream`, the upstream gradient."""
        return call_tensors(self.arguments, self.grad_output)

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of the results: `output`, and the arguments with a gradient."""
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
        """Return whether the elements of an input are gigabytes apart."""
        return any(map(is_far, self.tensors.values()))

    @property
    def _constant(self) -> frozenset[str]:
        """The names of the tensors that take no gradient."""
        return frozenset(self.tensors) - {"upstream", *self.op.differentiable}

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
    """Draw the case's inputs, and compute the oracle's results and the budgets.

    The oracle is the reference in float64; the budget is eager's error. For tensors of fewer than
    1,000 elements, on which eager may be lucky, the budget is its largest error over eight draws.

    On a CPU both are computed at the first comparison, since a solution that does not support the
    case never needs them.

    Args:
        op: The op.
        case: The case.
        draws: The random numbers of the case, which no solution may know.
        device: `cpu` or `cuda`.
        scarce: Whether GPU memory is scarce; see `Problem`.

    Raises:
        torch.OutOfMemoryError: The case does not fit in the GPU's free memory.
    """
    seed = draws.number(op.name, case.name, "inputs")
    drawn, gradients = draw(op, case, seed, device), "backward" in case.directions
    solve = partial(_solve, op, case, drawn, gradients, scarce, seed=seed)
    problem = Problem(op, case, device, *drawn, solve, draws, scarce)
    if device == "cuda":  # compute the truth now, while memory is available
        _ = problem.truth
    return problem


def call_tensors(arguments: dict[str, Any], grad_output: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return a call's tensor arguments and its upstream gradient, by name."""
    tensors = {name: v for name, v in arguments.items() if isinstance(v, torch.Tensor)}
    return {**tensors, "upstream": grad_output}


def _solve(
    op: Op[Any],
    case: Case,
    drawn: Drawn,
    gradients: bool,
    scarce: bool,
    seed: int | None = None,
    least: Mapping[str, Budget] | None = None,
) -> Solved:
    """Return the oracle's results for one draw, and eager's error on each result.

    Args:
        op: The op.
        case: The case.
        drawn: The inputs.
        gradients: Whether to compute the gradients.
        scarce: Whether to return the truth in host memory.
        seed: The seed of the inputs, from which a small case gets further draws for its budgets.
        least: The least budgets.
    """
    device = drawn[1].device
    truth = oracle.truth(op, *drawn, gradients)
    if scarce:
        truth = {name: tensor.cpu() for name, tensor in truth.items()}
    eager = oracle.eager(op, *drawn, gradients)
    budgets = {
        name: budget_of(eager[name], expected, case.by_slice, device)
        for name, expected in truth.items()
    }
    others = [least] if least else []
    if seed is not None and any(0 < each.numel() < FEW_ELEMENTS for each in truth.values()):
        again = (draw(op, case, seed + n, device.type) for n in range(1, DRAWS_OF_FEW))
        others += [_solve(op, case, redrawn, gradients, scarce)[1] for redrawn in again]
    for other in others:
        budgets = {name: larger(budget, other[name]) for name, budget in budgets.items()}
    return truth, budgets
