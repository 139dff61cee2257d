"""What a device can run: its memory, its dtypes, and the cases of a tier that fit it."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch

from common import ops
from common.errors import UserError
from common.ops._names import of_ops
from common.printable import complain_once
from common.solutions import Solution
from common.spec import DIRECTIONS, Case, Op, Tier

LARGE: tuple[Tier, ...] = ("matrix", "plot")
"""The tiers whose tensors are too large for the interpreter."""
REPEATS = 20
"""The repeats of each board case on a GPU, where concurrent programs may race."""
GIB = 1 << 30
CONTEXT = 600 << 20
"""The GPU bytes of a process before its first tensor: context, kernels, libraries."""
IDLE = 2 * CONTEXT
"""The bytes of the two CUDA contexts of the harness and of eager's idle process."""


def needed(op: Op[Any], case: Case, on_host: bool = False) -> int:
    """Return an estimate of the bytes for one solution's process and for the problem.

    They are a context, the inputs and results of several calls, and what a call allocates, which
    is estimated as eager's. With `on_host`, one call is live at a time, and the truth and the
    copies of results lie in host memory.
    """
    data = sum(op.work(case, direction).bytes for direction in DIRECTIONS) + 2 * case.far_bytes
    return CONTEXT + (2 if on_host else 10) * data + 5 * op.workspace(case) // 4


class DeviceMemory:
    """The memory budget of one run, and the part of it that is left."""

    def __init__(self, left: Callable[[], int]) -> None:
        """Set the budget to all bytes that are free now; `left` returns the device's free bytes."""
        self.left, self.budget = left, left()

    @classmethod
    def of(cls, device: str) -> DeviceMemory:
        """Return the budget of a device: `cuda`, or `cpu`, whose memory is unlimited."""
        if device != "cuda":
            return cls(lambda: sys.maxsize)
        empty_cache()
        return cls(lambda: torch.cuda.mem_get_info()[0])

    def needs(self, op: Op[Any], case: Case) -> tuple[int, bool]:
        """Return the bytes that a case may need, and whether they are scarce.

        Then the truth and the copies of the case's results must lie on the host.
        """
        scarce = IDLE + needed(op, case) > self.budget
        return needed(op, case, scarce), scarce


def empty_cache() -> None:
    """Return the GPU memory that this process caches to the device."""
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def tier_cases(
    solutions: Iterable[Solution],
    tier: Tier,
    device: str,
    sample: int | None = None,
    note: Callable[[str], None] = complain_once,
    names: Sequence[str] = (),
) -> Iterator[tuple[Op[Any], list[Case]]]:
    """Yield each op of the solutions with its cases of the tier.

    Args:
        solutions: The solutions; ops without a solution are left out.
        tier: The tier.
        device: `cpu` or `cuda`. On a CPU the board's cases are replaced by their small twins; a GPU
            without bfloat16 gets no case of that dtype.
        sample: The most cases of each op, the same sample in every call.
        note: Called with a line about what is left out: a dtype, and each case with a far view
            (4 GiB or more) and each op's large case that does not fit in the GPU's free memory.
        names: The names of the cases in place of the tier's, of which each op has those that it can
            say; see `ops/_names.py`.

    Raises:
        UserError: The tier's tensors are too large for the interpreter, or no op has such a case.
    """
    if tier in LARGE and device == "cpu":
        raise UserError(f"tier {tier} needs a GPU: its tensors are too large for the interpreter")
    memory, lacks = DeviceMemory.of(device), no_bfloat16(device)
    if lacks:
        note(lacks)

    def fits(op: Op[Any], case: Case) -> bool:
        """Return whether the case fits in the memory; if not, note it."""
        least = IDLE + needed(op, case, on_host=True)
        if least > memory.budget:
            reason = f"needs {least / GIB:.1f} GiB, {memory.budget / GIB:.1f} GiB free"
            note(left_out(op, case, reason))
        return least <= memory.budget

    valid = ops.valid((solution.op for solution in solutions), tier)
    asked = [pair for name in dict.fromkeys(names) for pair in of_ops(valid, name)]
    for op in valid:
        large = [op.large] if op.large and tier == "matrix" else []
        own = [*op.tier(tier, device), *large]
        every = [case for of, case in asked if of is op] if names else own
        if names and device == "cpu":
            for case in every:
                if (twin := op.twin(case)).name != case.name:
                    size = f"{needed(op, case, on_host=True) / GIB:.1f} GiB on a GPU"
                    complain_once(f"without a GPU {twin.name} stands in for {case.name}, {size}")
            every = [*map(op.twin, every)]
        cases = [
            case
            for case in every
            if not lacks or case.dtype != "bfloat16"
            if not (case.far_bytes or case in large) or fits(op, case)
        ]
        if not cases:  # only the ops of the seeds' plots have cases in the tier `plot`
            continue
        if sample and sample < len(cases):
            indices = sorted(random.Random(0).sample(range(len(cases)), sample))
            cases = [cases[index] for index in indices]
        yield op, cases


def left_out(op: Op[Any], case: Case, reason: str) -> str:
    """Return a line on a case that does not fit the device."""
    return f"{op.name} {case.name} is left out: {reason}"


def no_bfloat16(device: str) -> str | None:
    """Return a line about the bfloat16 cases that are left out on this GPU, None if none are.

    GPUs support bfloat16 since Ampere.
    """
    if device == "cpu" or torch.cuda.is_bf16_supported(including_emulation=False):
        return None
    return f"{torch.cuda.get_device_name()} has no bfloat16: cases of that dtype are left out"


def repeats(tier: Tier, device: str) -> int:
    """Return the number of repeats of each case of a tier, which expose a rare race."""
    return REPEATS if tier == "board" and device == "cuda" else 0
