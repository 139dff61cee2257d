"""The GPU memory that a run may take, and the memory that the steps of grading a case need.

The budget is the memory that is free when the run starts, or less where the user says so. Whatever
the harness needs of it is taken from no solution: where both do not fit, fewer solutions run at the
same time, idle processes end, and the truth moves to host memory (`Problem.frugal`).
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from common.spec import DIRECTIONS, Case, Op

GIB = 1 << 30
CONTEXT = 600 << 20
"""The bytes that a process takes of a GPU before its first tensor: context, kernels, libraries."""

PIECES = GIB // 2
"""The bytes that the oracle takes for one piece at a time."""
IDLE = 2 * CONTEXT
"""The bytes that the harness and eager's idle process take."""


@dataclass(frozen=True)
class Footprint:
    """The bytes of GPU memory that one case takes of any solution, as far as can be foreseen."""

    data: int
    """Of one call's inputs, upstream gradient, output and gradients."""
    own: int
    """Of a call beyond its inputs, results included, taken to be eager's."""
    far: bool = False
    """Whether a view's elements lie gigabytes apart."""

    @classmethod
    def by(cls, op: Op[Any], case: Case) -> Footprint:
        """Return the memory of a case of an op; a far view spans that of two arguments."""
        data = sum(op.work(case, each).bytes for each in DIRECTIONS)
        return cls(data + 2 * case.span, op.room(case), bool(case.span))

    def fits(self, budget: int) -> bool:
        """Return whether the budget holds the case with one solution."""
        return self.least <= budget

    @property
    def least(self) -> int:
        """Return the bytes that the case takes with one solution, contexts included."""
        return IDLE + self.problem(frugal=True) + self.graded(frugal=True)

    @property
    def solved(self) -> int:
        """Return the bytes that computing the truth and eager's error takes, inputs included."""
        return 3 * self.data + PIECES + self.own

    def problem(self, frugal: bool) -> int:
        """Return the bytes of the inputs and, unless it is on the host, of the truth."""
        return (1 if frugal else 5) * self.data // 2

    def graded(self, frugal: bool) -> int:
        """Return the bytes that grading one solution needs beside the problem.

        The harness keeps copies of the results; where two calls live at the same time, the truth
        of the other inputs is in float64. A frugal exchange makes one call at a time and keeps
        copies on the host.
        """
        kept = (1 if frugal else 8) * self.data // 2
        return self.process + self.shared(frugal) + kept

    @property
    def process(self) -> int:
        """Return the bytes that a solution's process takes beside the shared memory."""
        return CONTEXT + 5 * self.own // 4

    def shared(self, frugal: bool) -> int:
        """Return the bytes of the memory that is shared with a solution's process.

        In it lie up to two sets of inputs and three of results.
        """
        return (2 if frugal else 6) * self.data // 2

    def frugal(self, budget: int) -> bool:
        """Return whether the harness must keep the truth and the results on the host."""
        return IDLE + self.problem(False) + self.graded(False) > budget

    @property
    def timed(self) -> int:
        """Return the bytes that timing one solution beside eager needs beside the problem.

        Two inputs and one set of results in the solution's shared memory, and the inputs as they
        were drawn; eager's inputs, and the buffers of a copy; what both calls take by themselves.
        """
        return CONTEXT + 7 * self.data // 2 + 5 * self.own // 2


class Memory:
    """The budget of one run, and what is left of it."""

    def __init__(self, free: Callable[[], int], budget: int | None = None) -> None:
        """Take the budget in bytes, at most the free memory, which is the default.

        Args:
            free: Returns the device's free bytes.
            budget: The bytes that the run may take.
        """
        self._free = free
        start = free()
        self.budget = min(budget or start, start)
        self._others = start - self.budget
        self._least = self.budget

    @property
    def limit(self) -> int | None:
        """Return the bytes that a solution's process may take, None where all is the run's."""
        return max(self.budget - IDLE, 1) if self._others else None

    @classmethod
    def of(cls, device: str, budget: int | None = None) -> Memory:
        """Return the budget of a device, `cuda` or `cpu`, whose memory is not counted."""
        if device != "cuda":
            return cls(lambda: sys.maxsize, budget)
        if torch.cuda.is_initialized():
            torch.cuda.empty_cache()  # of an earlier step
        return cls(_free, budget)

    @property
    def left(self) -> int:
        """Return the bytes of the budget that nothing takes now."""
        return self.look()

    def look(self) -> int:
        """Return the bytes that are left; take what is taken now into the peak."""
        left = self._free() - self._others
        self._least = min(self._least, left)
        return left

    @property
    def peak(self) -> int:
        """Return the most bytes that were taken whenever they were looked at."""
        return self.budget - self._least


def _free() -> int:
    return torch.cuda.mem_get_info()[0]
