"""The GPU memory of a run: how much it may use, and how much a case may need."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch

from common.spec import DIRECTIONS, Case, Op

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

    def __init__(self, free: Callable[[], int], budget: int | None = None) -> None:
        """Set the budget.

        Args:
            free: Returns the device's free bytes.
            budget: The bytes that the run may use, at most the free bytes, which are the default.
        """
        self._free = free
        start = free()
        self.budget = min(budget or start, start)
        self._others = start - self.budget
        self._least = self.budget

    @property
    def limit(self) -> int | None:
        """Return the bytes that a solution's process may use; None if the run may use all."""
        return max(self.budget - IDLE, 1) if self._others else None

    @classmethod
    def of(cls, device: str, budget: int | None = None) -> DeviceMemory:
        """Return the budget of a device: `cuda`, or `cpu`, whose memory is unlimited."""
        if device != "cuda":
            return cls(lambda: sys.maxsize)
        if torch.cuda.is_initialized():
            torch.cuda.empty_cache()  # release memory that an earlier step cached
        return cls(lambda: torch.cuda.mem_get_info()[0], budget)

    @property
    def left(self) -> int:
        """Return the bytes of the budget that are free now; each reading counts for `peak`."""
        left = self._free() - self._others
        self._least = min(self._least, left)
        return left

    @property
    def peak(self) -> int:
        """Return the most bytes that were in use at any reading of `left`."""
        return self.budget - self._least

    def is_scarce(self, op: Op[Any], case: Case) -> bool:
        """Return whether the truth and the copies of the case's results must lie on the host."""
        return IDLE + needed(op, case) > self.budget

    @staticmethod
    def least(op: Op[Any], case: Case) -> int:
        """Return the bytes that the case needs at least: with one solution, contexts included."""
        return IDLE + needed(op, case, on_host=True)
