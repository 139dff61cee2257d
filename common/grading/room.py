"""Room on a GPU: the solutions that run together, and the processes that end for the next step."""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from operator import methodcaller

import torch

from common.grading.memory import CONTEXT, IDLE, Footprint, Memory
from common.grading.worker import Worker


class Room:
    """The memory of a run, and the workers that share it."""

    def __init__(self, memory: Memory) -> None:
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
        frugal = largest.frugal(self.memory.budget)
        step = max(largest.graded(frugal), largest.timed * timed)
        spare = self.memory.budget - IDLE - largest.problem(frugal) - step
        return max(1 + spare // CONTEXT, 1)

    @staticmethod
    def needed(footprint: Footprint, solutions: int) -> int:
        """Return the bytes of a case under way: its problem, and all solutions graded on it.

        A case with a far view counts as none here: it waits until it fits; see `taken`.
        """
        if footprint.far:
            return 0
        return footprint.problem(frugal=False) + solutions * footprint.graded(frugal=False)

    def holds(self, needed: Iterable[int]) -> bool:
        """Return whether cases that need so many bytes may be under way at the same time."""
        return IDLE + sum(needed) <= self.memory.budget

    @contextlib.contextmanager
    def taken(self, worker: Worker, footprint: Footprint) -> Iterator[None]:
        """Wait until the case fits beside those under way, or none is; then make room for it."""
        frugal = footprint.frugal(self.memory.budget)
        needed = footprint.graded(frugal)
        most = self.memory.budget - IDLE - footprint.problem(frugal)
        with self._changed:
            self._changed.wait_for(
                lambda: not self._busy or sum(self._busy.values()) + needed <= most
            )
            self._busy[worker] = needed
            held = min(worker.shared, footprint.shared(frugal))
            free = footprint.process + footprint.shared(frugal) - held
            self.make(needed - held, self._busy, free)
        try:
            yield
        finally:
            with self._changed:
                self.memory.look()  # while the case is there
                del self._busy[worker]
                self._asked[worker] = time.monotonic()
                self._changed.notify_all()

    def make(self, needed: int, keep: Collection[Worker], free: int | None = None) -> bool:
        """Free memory until so many bytes are left; return whether they are.

        The harness's cache goes first, then the shared memory of the workers that are not kept,
        then their processes, as many as it takes. The worker that was asked last goes last.

        Args:
            needed: The bytes.
            keep: The workers that are kept as they are.
            free: The bytes of them that the harness's cache cannot serve, by default all.
        """
        others = [worker for worker in self.workers if worker not in keep]
        others.sort(key=lambda worker: self._asked.get(worker, 0.0))
        steps: tuple[Callable[[Worker], None], ...] = (
            methodcaller("release"),
            methodcaller("close"),
        )
        if not self._has(needed, free):
            _empty_cache()
        for step, worker in itertools.product(steps, others):
            if self._has(needed, free):
                return True
            step(worker)
            _empty_cache()
        return self._has(needed, free)

    def _has(self, needed: int, free: int | None) -> bool:
        """Return whether so many bytes are left, those within from the harness's cache too."""
        left = self.memory.left
        if free is None:
            return left >= needed
        return left >= free and left + _cached() >= needed

    @contextlib.contextmanager
    def alone(self, worker: Worker) -> Iterator[None]:
        """End every process; then a SIGKILL of the worker's counts for each one of its solution.

        So a solution that ends itself so is tried alone as often as it has lives, however many of
        its cases are under way.
        """
        for each in self.workers:
            each.close()
        _empty_cache()
        with worker.alone(), worker.deaths.with_nothing_beside() as kills:
            yield
        for each in self.workers:
            if each is not worker and each.solution == worker.solution:
                each.deaths += kills

    def make_for_problem(self, footprint: Footprint) -> None:
        """Make room for a problem that is about to be computed, beside the cases under way.

        The harness computes it, and its cache serves all of that: emptied for each of several large
        problems, it would be allocated anew for each.
        """
        with self._changed:
            self.make(footprint.solved, self._busy, free=0)


def _cached() -> int:
    """Return the bytes of the GPU that the harness's allocator holds free."""
    if not torch.cuda.is_initialized():
        return 0
    return torch.cuda.memory_reserved() - torch.cuda.memory_allocated()


def _empty_cache() -> None:
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()
