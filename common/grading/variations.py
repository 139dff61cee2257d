"""The variations of a further call: another mode, or other inputs of the same case.

A solution that keeps what it computed under a wrong key, such as an address, errs on other inputs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import Enum
from itertools import combinations, count
from typing import Any

import torch

from common.draws import Draws
from common.grading.problem import Problem
from common.ops._draw import draw
from common.spec import Op

LARGEST_HALF = 100.0
"""The largest input of a case that may be drawn again in float16, so that no product overflows."""


@dataclass(frozen=True)
class Mode:
    """One way of calling a solution."""

    setting: str
    """The context of the call: `no_grad`, `inference_mode`, `stream`, or "" for none."""
    differentiable: tuple[str, ...]
    """The inputs that require a gradient."""
    text: str = ""
    """The words for a further mode in a verdict's reason; "" for the usual mode."""

    @property
    def forward_only(self) -> bool:
        """Whether the call has no backward."""
        return self.setting in ("no_grad", "inference_mode") or not self.differentiable


def modes(op: Op[Any], device: str) -> list[Mode]:
    """Return the further modes of the op on a device."""
    names = op.differentiable
    further = [
        Mode("no_grad", names, "under torch.no_grad()"),
        Mode("inference_mode", names, "in torch.inference_mode()"),
        *(Mode("", subset, _gradient_text(subset)) for subset in _proper_subsets(names)),
    ]
    if device == "cuda":
        further.append(Mode("stream", names, "on a stream of its own"))
    return further


def _proper_subsets(names: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Yield proper subsets of the inputs: `x`, the weights, and parts of the weights.

    The last two are `x` with either half of the weights, as if one expert is trained and the other
    is frozen.
    """
    first, rest = names[:1], names[1:]
    if rest:
        yield first
    yield rest
    if len(rest) > 1:
        subsets = list(_separating_subsets(rest))
        yield from subsets
        yield first + subsets[0]
        yield first + tuple(name for name in rest if name not in subsets[0])


def _separating_subsets(names: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Yield subsets such that for any two inputs `a` and `b` some subset has `a` but not `b`.

    Each input is in half of the subsets, and no two inputs are in the same subsets, so that four
    subsets are enough for six inputs. The first subset is the three weights of one side.
    """
    subsets = next(n for n in count(1) if math.comb(n, n // 2) >= len(names))
    memberships = list(zip(names, combinations(range(subsets), subsets // 2), strict=False))
    for subset in range(subsets):
        yield tuple(name for name, indices in memberships if subset in indices)


def _gradient_text(differentiable: tuple[str, ...]) -> str:
    if not differentiable:
        return "where no input takes a gradient"
    verb = "takes" if len(differentiable) == 1 else "take"
    return f"where only {', '.join(differentiable)} {verb} a gradient"


# --- other inputs ---------------------------------------------------------------------------------


class Change(Enum):
    """The difference between a call's inputs and those of an earlier call; the value names it."""

    WRITTEN = "other inputs"
    """Other values are written into the earlier tensors, except into some that stay unchanged."""
    FLOAT16 = "float16"
    """The tensors without a gradient are the same, the others normal in this more precise dtype."""
    FLOAT32 = "float32"
    """The same in another dtype."""
    REPLACED = "replacement"
    """The earlier tensors are freed, and other values lie at their addresses; the last change."""

    @property
    def dtype(self) -> str:
        """The dtype of a change of dtype; "" for the other changes."""
        return self.value if self in (Change.FLOAT16, Change.FLOAT32) else ""


def allows(problem: Problem, change: Change) -> bool:
    """Return whether the inputs can change like this.

    If the elements of an input are gigabytes apart, none can. A dtype changes only to a more
    precise one, in which rounded tables are wrong, and whose range includes the inputs.
    """
    if problem.far or not change.dtype:
        return not problem.far
    old, new = (torch.finfo(getattr(torch, each)) for each in (problem.case.dtype, change.dtype))
    inputs = [problem.arguments[name] for name in problem.op.differentiable]
    in_range = change is Change.FLOAT32 or all(
        bool((tensor.abs() < LARGEST_HALF).all()) for tensor in inputs
    )
    return new.eps < old.eps and bool(_constant(problem)) and in_range


def changed(problem: Problem, change: Change) -> Problem:
    """Return the problem with changed inputs, which are drawn once for all workers.

    Only a problem with `WRITTEN` inputs has gradients.
    """
    with problem.lock:
        if change not in problem.changes:
            problem.changes[change] = _redrawn(problem, change)
        return problem.changes[change]


def _redrawn(problem: Problem, change: Change) -> Problem:
    """Draw the problem with changed inputs.

    Some written tensors stay unchanged, to expose a solution that caches results under one of its
    inputs. In the same dtype the budgets are at least the problem's, since eager may be lucky on
    few elements.
    """
    op = problem.op
    draws = Draws(problem.draws.number(op.name, problem.case.name, change.value))
    dice = draws.dice("which")
    case, unchanged = problem.case.changed(dice), frozenset[str]()
    if change is Change.WRITTEN:  # a nonempty proper subset of the floating-point tensors
        tensors = {key: each for key, each in problem.arguments.items() if key in problem.tensors}
        floating = [name for name, each in tensors.items() if each.is_floating_point()]
        sizes = range(1, len(floating))
        subsets = [names for size in sizes for names in combinations(floating, size)]
        unchanged = frozenset(dice.choice(subsets or [()]))
    elif change.dtype:
        # subnormal values of float32 are beyond what a right kernel of this case must keep
        case = replace(problem.case, dtype=change.dtype, values="normal")
        unchanged = _constant(problem)
    seed = draws.number(op.name, case.name, "inputs")
    drawn = draw(op, case, seed, problem.device)
    drawn[0].update({name: problem.arguments[name] for name in unchanged})
    return Problem(
        op, case, problem.device, *drawn, draws, problem.scarce,
        forward_only=change is not Change.WRITTEN,
        least=None if change.dtype else problem.solved[1], unchanged=unchanged,
    )  # fmt: skip


def _constant(problem: Problem) -> frozenset[str]:
    """Return the names of the tensors that take no gradient."""
    return frozenset(problem.tensors) - {*problem.upstream, *problem.op.differentiable}
