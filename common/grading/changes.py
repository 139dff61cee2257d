"""Other inputs for a further call of the same case: other values, or another dtype.

A solution that keeps what it computed under a wrong key, such as an address, then answers wrongly.
"""

from __future__ import annotations

from dataclasses import replace
from enum import Enum
from itertools import combinations

from common.draws import Draws
from common.grading.problem import Problem
from common.ops._draw import draw

DTYPES = ("bfloat16", "float16", "float32")
"""The dtypes of cases, the least precise first."""
LARGEST_HALF = 100.0
"""The largest input of a case that may be drawn again in float16, so that no product overflows."""


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


def allows(problem: Problem, change: Change) -> bool:
    """Return whether the inputs can change like this.

    If the elements of an input are gigabytes apart, none can. A dtype changes only to a more
    precise one, in which rounded tables are wrong, and whose range includes the inputs.
    """
    if problem.far or not change.dtype:
        return not problem.far
    finer = DTYPES.index(change.dtype) > DTYPES.index(problem.case.dtype)
    inputs = [problem.arguments[name] for name in problem.op.differentiable]
    in_range = change is Change.FLOAT32 or all(
        bool((tensor.abs() < LARGEST_HALF).all()) for tensor in inputs
    )
    return finer and bool(_constant(problem)) and in_range


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
        floating = [name for name, each in problem.tensors.items() if each.is_floating_point()]
        floating.remove("upstream")
        sizes = range(1, len(floating))
        subsets = [names for size in sizes for names in combinations(floating, size)]
        unchanged = frozenset(dice.choice(subsets or [()]))
    elif change.dtype:
        case, unchanged = replace(problem.case, dtype=change.dtype), _constant(problem)
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
    return frozenset(problem.tensors) - {"upstream", *problem.op.differentiable}
