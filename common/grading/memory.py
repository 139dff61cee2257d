"""The GPU memory budget of a run, the memory that a case needs, and the order of freeing memory.

The budget is the memory that is free when the run starts, or less if the user says so. The
harness's needs do not reduce a solution's memory: if both do not fit, fewer solutions run at the
same time, idle processes end, and the truth moves to host memory (`Problem.low_memory`).
"""

from __future__ import annotations

import contextlib
import gc
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from common.spec import DIRECTIONS, Case, Op

if TYPE_CHECKING:
    from common.grading.worker import Worker

GIB = 1 << 30
CONTEXT = 600 << 20
"""The GPU bytes of a process before its first tensor: context, kernels, libraries."""

PIECES = GIB // 2
"""The bytes that the oracle needs for one piece at a time."""
IDLE = 2 * CONTEXT
"""The bytes of the two CUDA contexts of the harness and of eager's idle process."""


@dataclass(frozen=True)
class Footprint:
    """An estimate of the GPU memory in bytes that a case needs, the same for every solution."""

    data: int
    """The bytes of one call's inputs, upstream gradient, output and gradients."""
    own: int
    """The bytes that a call allocates, results included; estimated as eager's allocations."""
    far: bool = False
    """Whether the elements of a view lie gigabytes apart."""

    @classmethod
    def by(cls, op: Op[Any], case: Case) -> Footprint:
        """Return the footprint of a case; two of its arguments may be far views."""
        data = sum(op.work(case, direction).bytes for direction in DIRECTIONS)
        return cls(data + 2 * case.far_bytes, op.workspace(case), bool(case.far_bytes))

    @property
    def least(self) -> int:
        """Return the bytes that the case needs at least: with one solution, contexts included."""
        return IDLE + self.problem(low_memory=True) + self.graded(low_memory=True)

    @property
    def solved(self) -> int:
        """Return the bytes to compute the truth and eager's error, inputs included."""
        return 3 * self.data + PIECES + self.own

    def problem(self, low_memory: bool) -> int:
        """Return the bytes of the inputs, and of the truth unless it is in host memory."""
        return (1 if low_memory else 5) * self.data // 2

    def graded(self, low_memory: bool) -> int:
        """Return the bytes that grading one solution needs in addition to the problem.

        The harness keeps copies of the results; if two calls are live at the same time, it also
        keeps the truth of the other inputs, in float64. A low-memory execution makes one call at a
        time and keeps the copies in host memory.
        """
        copies = (1 if low_memory else 8) * self.data // 2
        process = CONTEXT + 5 * self.own // 4
        return process + self.shared(low_memory) + copies

    def shared(self, low_memory: bool) -> int:
        """Return the bytes of the memory that is shared with a solution's process.

        The memory holds up to two sets of inputs and three sets of results.
        """
        return (2 if low_memory else 6) * self.data // 2

    def low_memory(self, budget: int) -> bool:
        """Return whether the harness must keep the truth and the results in host memory."""
        return IDLE + self.problem(False) + self.graded(False) > budget

    @property
    def timed(self) -> int:
        """Return the bytes that timing one solution next to eager needs in addition to the problem.

        The sum of two sets of inputs and one set of results in the solution's shared memory, the
        inputs as drawn, eager's inputs, the buffers of a copy, and both calls' own allocations.
        """
        return CONTEXT + 7 * self.data // 2 + 5 * self.own // 2


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
            return cls(lambda: sys.maxsize, budget)
        if torch.cuda.is_initialized():
            torch.cuda.empty_cache()  # release memory that an earlier step cached
        return cls(_free, budget)

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


class MemoryBudget:
    """Shares the memory budget of a run among the workers."""

    def __init__(self, memory: DeviceMemory) -> None:
        """Start without workers."""
        self.memory = memory
        self.workers: list[Worker] = []
        self._busy: dict[Worker, int] = {}
        """The workers with a case under way, with the bytes that the case may need."""
        self._last_used: dict[Worker, float] = {}
        """The time at which each worker's latest case ended, by the monotonic clock."""
        self._changed = threading.Condition()

    def together(self, largest: Footprint, timed: bool) -> int:
        """Return the number of solutions that may have a process at the same time.

        Each process needs the memory of a CUDA context even when idle, in addition to the largest
        case.

        Args:
            largest: The footprint of the largest case.
            timed: Whether cases are timed too, not only graded.
        """
        low_memory = largest.low_memory(self.memory.budget)
        step = max(largest.graded(low_memory), largest.timed * timed)
        spare = self.memory.budget - IDLE - largest.problem(low_memory) - step
        return max(1 + spare // CONTEXT, 1)

    @staticmethod
    def needed(footprint: Footprint, solutions: int) -> int:
        """Return the bytes of a case under way: its problem, and all solutions graded on it.

        A case with a far view counts as 0 bytes here: it waits in `taken` until it fits.
        """
        if footprint.far:
            return 0
        return footprint.problem(low_memory=False) + solutions * footprint.graded(low_memory=False)

    @contextlib.contextmanager
    def taken(self, worker: Worker, footprint: Footprint) -> Iterator[None]:
        """Wait until the case fits next to the cases under way, if any; then free memory for it.

        The memory counts as taken within the context.
        """
        low_memory = footprint.low_memory(self.memory.budget)
        needed = footprint.graded(low_memory)
        most = self.memory.budget - IDLE - footprint.problem(low_memory)
        with self._changed:
            self._changed.wait_for(
                lambda: not self._busy or sum(self._busy.values()) + needed <= most
            )
            self._busy[worker] = needed
            self.make(needed - min(worker.shared, footprint.shared(low_memory)), self._busy)
        try:
            yield
        finally:
            with self._changed:
                _ = self.memory.left  # updates the peak while the case holds its memory
                del self._busy[worker]
                self._last_used[worker] = time.monotonic()
                self._changed.notify_all()

    def make(self, needed: int, keep: Collection[Worker]) -> bool:
        """Free memory until the needed bytes are left; return whether they are.

        In order: empty the harness's cache, free the other workers' shared memory, and end their
        processes, each time the least recently used worker first.

        Args:
            needed: The bytes.
            keep: The workers that are not touched.
        """
        others = [worker for worker in self.workers if worker not in keep]
        others.sort(key=lambda worker: self._last_used.get(worker, 0.0))
        releases, ends = [worker.release for worker in others], [worker.close for worker in others]
        for step in (_empty_cache, *releases, *ends):
            if self.memory.left >= needed:
                return True
            step()
            _empty_cache()
        return self.memory.left >= needed

    @contextlib.contextmanager
    def isolated(self, worker: Worker) -> Iterator[None]:
        """End every process; within the context, only the worker may start a new one."""
        for other in self.workers:
            other.close()
        gc.collect()  # the frames of an exception may hold a case's tensors
        _empty_cache()
        with worker.isolated():
            yield

    def has_company(self, worker: Worker) -> bool:
        """Return whether workers of other folders may run at the same time as this one."""
        others = (each for each in self.workers if each.solution.handle != worker.solution.handle)
        return any(others) and not worker.is_isolated

    def make_for_problem(self, footprint: Footprint) -> None:
        """Free memory to compute a problem; leave the workers with a case under way untouched."""
        with self._changed:
            self.make(footprint.solved, self._busy)


def _empty_cache() -> None:
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def _free() -> int:
    return torch.cuda.mem_get_info()[0]
