"""The cases of a tier on a device, and the number of repeats of each case."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from common import ops
from common.errors import UserError
from common.grading.memory import GIB, DeviceMemory
from common.solutions import Solution
from common.spec import Case, Op, Tier

LARGE: tuple[Tier, ...] = ("matrix", "plot")
"""The tiers whose tensors are too large for the interpreter."""
REPEATS = 20
"""The repeats of each board case on a GPU, where concurrent programs may race."""


def _print(note: str) -> None:
    print(f"study: {note}", file=sys.stderr)


def tier_cases(
    solutions: Iterable[Solution],
    tier: Tier,
    device: str,
    sample: int | None = None,
    budget: int | None = None,
    note: Callable[[str], None] = _print,
) -> Iterator[tuple[Op[Any], list[Case]]]:
    """Yield each op of the solutions with its cases of the tier.

    Args:
        solutions: The solutions; ops without a solution are left out.
        tier: The tier.
        device: `cpu` or `cuda`. On a CPU the board's cases are replaced by their small twins; a GPU
            without bfloat16 gets no case of that dtype.
        sample: The most cases of each op, the same sample in every call.
        budget: The bytes of GPU memory that the cases may take, by default the free memory. A case
            with a far view (4 GiB or more) that does not fit, or the op's large case, is left out.
        note: Called with a line about each case that is left out.

    Raises:
        UserError: The tier's tensors are too large for the interpreter.
    """
    if tier in LARGE and device == "cpu":
        raise UserError(f"tier {tier} needs a GPU: its tensors are too large for the interpreter")
    selected = ops.valid(solution.op for solution in solutions)
    for op in selected:
        memory = DeviceMemory.of(device, budget)
        listed = ops.cases(op, tier, device, alone=len(selected) == 1)
        large = [op.large] if op.large and tier == "matrix" else []
        supported = [case for case in (*listed, *large) if _supports(case, device)]
        cases = [
            case
            for case in supported
            if not (case.far_bytes or case in large) or _fits(memory, op, case, note)
        ]
        if not cases:  # only the ops of the seeds' plots have cases in the tier `plot`
            continue
        if sample and sample < len(cases):
            indices = sorted(random.Random(0).sample(range(len(cases)), sample))
            cases = [cases[index] for index in indices]
        yield op, cases


def _supports(case: Case, device: str) -> bool:
    """Return whether the device supports the case's dtype."""
    return case.dtype != "bfloat16" or _has_bfloat16(device)


def _has_bfloat16(device: str) -> bool:
    """Return whether the device supports bfloat16, as GPUs do since Ampere."""
    return device == "cpu" or torch.cuda.is_bf16_supported(including_emulation=False)


def no_bfloat16(device: str) -> str | None:
    """Return a line about the bfloat16 cases that are left out on this GPU, None if none are."""
    if _has_bfloat16(device):
        return None
    return f"{torch.cuda.get_device_name()} has no bfloat16: cases of that dtype are left out"


def _fits(memory: DeviceMemory, op: Op[Any], case: Case, note: Callable[[str], None]) -> bool:
    """Return whether the case fits in the memory; if not, note it."""
    least = memory.least(op, case)
    if least > memory.budget:
        reason = f"needs {least / GIB:.1f} GiB, {memory.budget / GIB:.1f} GiB free"
        note(f"{op.name} {case.name} is left out: {reason}")
    return least <= memory.budget


def repeats(tier: Tier, device: str) -> int:
    """Return the number of repeats of each case of a tier, which expose a rare race."""
    return REPEATS if tier == "board" and device == "cuda" else 0
