"""The cases of a tier as a device runs them, and how often each is answered."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from common import ops
from common.errors import UserError
from common.grading.memory import GIB, DeviceMemory, Footprint
from common.solutions import Solution
from common.spec import Case, Op, Tier

LARGE: tuple[Tier, ...] = ("matrix", "plot")
"""The tiers whose tensors are too large for the interpreter."""
REPEATS = 20
"""Further answers to each of the board's cases on a GPU, whose programs overlap."""


def tier_cases(
    solutions: Iterable[Solution],
    tier: Tier,
    device: str,
    sample: int | None = None,
    budget: int | None = None,
) -> Iterator[tuple[Op[Any], list[Case]]]:
    """Yield each op of the solutions with its cases of the tier.

    Args:
        solutions: The solutions; ops that none of them is for are left out.
        tier: The tier.
        device: `cpu` or `cuda`; without a GPU the board's cases are their twins, and a GPU without
            bfloat16 gets no case of that dtype.
        sample: At most so many cases of each op, the same ones each time.
        budget: The bytes that may be taken of a GPU, by default all that is free. A case with a far
            view, of 4 GiB and more, is left out where they do not hold it; stderr names it.

    Raises:
        UserError: The tier's tensors are too large for the interpreter.
    """
    if tier in LARGE and device == "cpu":
        raise UserError(f"tier {tier} needs a GPU: its tensors are too large for the interpreter")
    whole = ops.whole(solution.op for solution in solutions)
    for op in whole:
        memory = DeviceMemory.of(device, budget).budget
        listed = ops.cases(op, tier, device, alone=len(whole) == 1)
        every = [case for case in listed if _has(case, device)]
        cases = [case for case in every if not case.span or _holds(memory, op, case)]
        if not cases:  # only the ops of the seeds' plots have any in the tier `plot`
            continue
        if sample and sample < len(cases):
            chosen = sorted(random.Random(0).sample(range(len(cases)), sample))
            cases = [cases[index] for index in chosen]
        yield op, cases


def _has(case: Case, device: str) -> bool:
    """Return whether the device computes in the case's dtype."""
    return case.dtype != "bfloat16" or _has_bfloat16(device)


def _has_bfloat16(device: str) -> bool:
    """Return whether the device computes in bfloat16, as GPUs do from Ampere on."""
    return device == "cpu" or torch.cuda.is_bf16_supported(including_emulation=False)


def no_bfloat16(device: str) -> str | None:
    """Return a line on the cases that a GPU without bfloat16 does not get."""
    if _has_bfloat16(device):
        return None
    return f"{torch.cuda.get_device_name()} has no bfloat16: cases of that dtype are left out"


def _holds(memory: int, op: Op[Any], case: Case) -> bool:
    """Return whether the memory holds the case; otherwise name it on stderr."""
    least = Footprint.by(op, case).least
    if least > memory:
        needs = f"needs {least / GIB:.1f} GiB, {memory / GIB:.1f} GiB free"
        print(f"study: {op.name} {case.name} is left out: {needs}", file=sys.stderr)
    return least <= memory


def repeats(tier: Tier, device: str) -> int:
    """Return how often a case of the tier is answered again, so that a rare race shows."""
    return REPEATS if tier == "board" and device == "cuda" else 0
