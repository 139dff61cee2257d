"""The GPU memory that a run may take, what grading a case needs of it, and what is freed first.

The budget is the memory that is free when the run starts, or less where the user says so. Whatever
the harness needs of it is taken from no solution: where both do not fit, fewer solutions run at the
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
        data = sum(op.work(case, direction).bytes for direction in DIRECTIONS)
        return cls(data + 2 * case.span, op.workspace(case), bool(case.span))

    @property
    def least(self) -> int:
        """Return the bytes that the case takes with one solution, contexts included."""
        return IDLE + self.problem(low_memory=True) + self.graded(low_memory=True)

    @property
    def solved(self) -> int:
        """Return the bytes that computing the truth and eager's error takes, inputs included."""
        return 3 * self.data + PIECES + self.own

    def problem(self, low_memory: bool) -> int:
        """Return the bytes of the inputs and, unless it is on the host, of the truth."""
        return (1 if low_memory else 5) * self.data // 2

    def graded(self, low_memory: bool) -> int:
        """Return the bytes that grading one solution needs beside the problem.

        The harness keeps copies of the results; where two calls live at the same time, the truth
        of the other inputs is in float64. A low-memory execution makes one call at a time and keeps
        copies on the host.
        """
        kept = (1 if low_memory else 8) * self.data // 2
        process = CONTEXT + 5 * self.own // 4
        return process + self.shared(low_memory) + kept

    def shared(self, low_memory: bool) -> int:
        """Return the bytes of the memory that is shared with a solution's process.

        In it lie up to two sets of inputs and three of results.
        """
        return (2 if low_memory else 6) * self.data // 2

    def low_memory(self, budget: int) -> bool:
        """Return whether the harness must keep the truth and the results on the host."""
        return IDLE + self.problem(False) + self.graded(False) > budget

    @property
    def timed(self) -> int:
        """Return the bytes that timing one solution beside eager needs beside the problem.

        Two inputs and one set of results in the solution's shared memory, and the inputs as they
        were drawn; eager's inputs, and the buffers of a copy; what both calls take by themselves.
        """
        return CONTEXT + 7 * self.data // 2 + 5 * self.own // 2


class DeviceMemory:
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
    def of(cls, device: str, budget: int | None = None) -> DeviceMemory:
        """Return the budget of a device, `cuda` or `cpu`, whose memory is not counted."""
        if device != "cuda":
            return cls(lambda: sys.maxsize, budget)
        if torch.cuda.is_initialized():
            torch.cuda.empty_cache()  # of an earlier step
        return cls(_free, budget)

    @property
    def left(self) -> int:
        """Return the bytes of the budget that nothing takes now; the others are in the peak."""
        left = self._free() - self._others
        self._least = min(self._least, left)
        return left

    @property
    def peak(self) -> int:
        """Return the most bytes that were taken whenever they were looked at."""
        return self.budget - self._least


class MemoryBudget:
    """The memory of a run, and the workers that share it."""

    def __init__(self, memory: DeviceMemory) -> None:
        """Start without workers."""
        self.memory = memory
        self.workers: list[Worker] = []
        self._busy: dict[Worker, int] = {}
        """The workers that are being asked, with the bytes that each may need."""
        self._asked: dict[Worker, float] = {}
        """When each worker's latest case ended, by the monotonic clock."""
        self._changed = threading.Condition()

    def together(self, largest: Footprint, timed: bool) -> int:
        """Return how many solutions may live at the same time, each in a process of its own.

        Each takes the memory of a CUDA context even when idle, beside the largest case, which is
        timed too or only graded.
        """
        low_memory = largest.low_memory(self.memory.budget)
        step = max(largest.graded(low_memory), largest.timed * timed)
        spare = self.memory.budget - IDLE - largest.problem(low_memory) - step
        return max(1 + spare // CONTEXT, 1)

    @staticmethod
    def needed(footprint: Footprint, solutions: int) -> int:
        """Return the bytes of a case under way: its problem, and all solutions graded on it.

        A case with a far view counts as none here: it waits until it fits; see `taken`.
        """
        if footprint.far:
            return 0
        return footprint.problem(low_memory=False) + solutions * footprint.graded(low_memory=False)

    @contextlib.contextmanager
    def taken(self, worker: Worker, footprint: Footprint) -> Iterator[None]:
        """Wait until the case fits beside those under way, or none is; then make room for it."""
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
                _ = self.memory.left  # for the peak, while the case is there
                del self._busy[worker]
                self._asked[worker] = time.monotonic()
                self._changed.notify_all()

    def make(self, needed: int, keep: Collection[Worker]) -> bool:
        """Free memory until so many bytes are left; return whether they are.

        The harness's cache goes first, then the shared memory of the workers that are not kept,
        then their processes, as many as it takes. The worker that was asked last goes last.

        Args:
            needed: The bytes.
            keep: The workers that are kept as they are.
        """
        others = [worker for worker in self.workers if worker not in keep]
        others.sort(key=lambda worker: self._asked.get(worker, 0.0))
        releases, ends = [worker.release for worker in others], [worker.close for worker in others]
        for step in (_empty_cache, *releases, *ends):
            if self.memory.left >= needed:
                return True
            step()
            _empty_cache()
        return self.memory.left >= needed

    @contextlib.contextmanager
    def isolated(self, worker: Worker) -> Iterator[None]:
        """Keep every process but the worker's from running, and start that one anew."""
        for each in self.workers:
            each.close()
        gc.collect()  # the frames of an exception hold a case's tensors
        _empty_cache()
        with worker.isolated():
            yield

    def has_company(self, worker: Worker) -> bool:
        """Return whether other workers may be asked beside this one."""
        return len(self.workers) > 1 and not worker.is_isolated

    def make_for_problem(self, footprint: Footprint) -> None:
        """Make room for a problem that is about to be computed, beside the cases under way."""
        with self._changed:
            self.make(footprint.solved, self._busy)


def _empty_cache() -> None:
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def _free() -> int:
    return torch.cuda.mem_get_info()[0]
