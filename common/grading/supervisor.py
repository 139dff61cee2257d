"""The workers of one device, and its memory.

A worker is lent for one case. On a GPU a case first waits until its memory fits beside the cases
under way; then idle processes end, if memory is still lacking.
"""

from __future__ import annotations

import contextlib
import gc
import threading
from collections.abc import Collection, Iterator

from common.grading.device import IDLE, DeviceMemory, empty_cache
from common.grading.fork_server import ForkServer
from common.grading.retries import Ends
from common.grading.worker import Worker
from common.solutions import Solution


class Supervisor:
    """Starts, lends and ends the workers of one device."""

    def __init__(
        self, server: ForkServer, memory: DeviceMemory, deadline: float | None = None
    ) -> None:
        """Start nothing yet; the deadline is in seconds, for one reply of a worker."""
        self.server, self.memory, self.ends = server, memory, Ends()
        self._deadline = deadline
        self._baselines: dict[Solution, Worker] = {}
        """The workers in which eager is timed next to each solution."""
        self._lent: dict[Worker, int] = {}
        """The workers with a case under way, with the bytes that the case may need."""
        self._free: list[Worker] = []
        """The other workers that were lent, the latest at the end."""
        self._changed = threading.Condition()

    @property
    def workers(self) -> list[Worker]:
        """All workers, the least recently lent of the free ones first."""
        with self._changed:
            return [*self._free, *self._baselines.values(), *self._lent]

    def baseline(self, eager: Solution) -> Worker:
        """Return the worker in which eager is timed; it is never lent."""
        return self._baselines.setdefault(eager, Worker(self.server, eager, self._deadline))

    @contextlib.contextmanager
    def lent(self, solution: Solution, needed: int = 0) -> Iterator[Worker]:
        """Lend one of the solution's workers for a case, the latest used that is free.

        The context begins once the bytes of GPU memory that the case may need fit beside the cases
        under way, if there are any.
        """

        def can_begin() -> bool:
            fits = sum(self._lent.values()) + needed <= self.memory.budget - IDLE
            return not self._lent or fits

        with self._changed:
            self._changed.wait_for(can_begin)
            own = [worker for worker in self._free if worker.solution == solution]
            worker = own[-1] if own else Worker(self.server, solution, self._deadline)
            self._free = [other for other in self._free if other is not worker]
            self._lent[worker] = needed
            self.make_room(needed - worker.shared)
        try:
            yield worker
        finally:
            with self._changed:
                del self._lent[worker]
                self._free.append(worker)
                self._changed.notify_all()

    def make_room(self, needed: int, keep: Collection[Worker] = ()) -> None:
        """Free memory until the needed bytes are free, the least recently used workers' first.

        In order: empty the harness's cache, free the shared memory of idle processes, and end them.
        """
        with self._changed:
            idle = [each for each in (*self._free, *self._baselines.values()) if each not in keep]
            releases, ends = [each.release for each in idle], [each.close for each in idle]
            for step in (empty_cache, *releases, *ends):
                if self.memory.left() >= needed:
                    return
                step()
                empty_cache()

    @contextlib.contextmanager
    def alone(self, worker: Worker) -> Iterator[None]:
        """End every process; within the context, only the worker may start a new one.

        The Compiler's processes go on, in another fork server, for whose end none is blamed.
        """
        for other in self.workers:
            other.close()
        self.server.separate()
        gc.collect()  # the frames of an exception may hold a case's tensors
        empty_cache()
        with worker.isolated():
            yield

    def has_company(self, worker: Worker) -> bool:
        """Return whether processes of other folders may have run beside the worker's."""
        handle = worker.solution.handle
        others = (each.pid and each.solution.handle != handle for each in self.workers)
        return any(others) and not worker.is_isolated

    def close(self) -> None:
        """End all workers and forget their ends; the next use starts others."""
        for worker in self.workers:
            worker.close()
        self._baselines, self._free, self.ends = {}, [], Ends()
