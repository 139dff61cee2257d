"""The workers of one device, its memory, and the one table of what is tried again.

A worker is lent for one case. On a GPU a case first waits until its memory fits beside the cases
under way; then idle processes end, if memory is still lacking. A failure that another process may
have caused is tried again as RETRIES states, with no other process alive.
"""

from __future__ import annotations

import contextlib
import gc
import sys
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator
from enum import Enum, auto
from typing import Literal, NamedTuple

import torch

from common.errors import Kind, ServerEnded, kind_of
from common.grading.device import IDLE, DeviceMemory
from common.grading.fork_server import ForkServer
from common.grading.worker import Worker
from common.solutions import Solution
from common.verdicts import ISOLATED_TOO, Failure

# --- what is tried again --------------------------------------------------------------------------


class Cause(Enum):
    """A cause of a failed try that may be outside the solution."""

    OUT_OF_MEMORY = "the GPU's memory ran out"
    KILLED = "a SIGKILL of unknown origin ended the solution's process"
    SERVER_ENDED = "the fork server ended, and all processes with it"
    LATE = "the solution gave no answer in time while others ran"
    EAGER = "eager's process failed or sent an invalid reply"
    FORGED = "the reported times are shorter than the stopwatch allows"
    LEFTOVER_WORK = "the probe is slow while the solution's process exists, and quick without it"
    OTHER_LOAD = "the probe is slow even without the solution's process"


class Remedy(Enum):
    """An action of the harness before the next try."""

    NONE = auto()
    ALONE = auto()
    """End every other process; none starts until the tries end."""
    RESTART_EAGER = auto()
    COUNT_SLOW_PROBES = auto()
    """Take times in spite of slow probes; the row states the number of rounds with them."""


class Retry(NamedTuple):
    """The consequence of a failure with a cause."""

    times: int
    """The number of further tries."""
    remedy: Remedy
    end: str
    """The result if the cause recurs in the last try."""


RETRIES = {
    Cause.OUT_OF_MEMORY: Retry(1, Remedy.ALONE, "RUNTIME_ERROR, or a case that is left out"),
    Cause.KILLED: Retry(1, Remedy.ALONE, "CRASHED"),
    Cause.SERVER_ENDED: Retry(1, Remedy.ALONE, "TAMPERED"),
    Cause.LATE: Retry(1, Remedy.ALONE, "TIMEOUT"),
    Cause.EAGER: Retry(2, Remedy.RESTART_EAGER, "no time"),
    Cause.FORGED: Retry(2, Remedy.NONE, "TAMPERED"),
    Cause.LEFTOVER_WORK: Retry(2, Remedy.NONE, "TAMPERED"),
    Cause.OTHER_LOAD: Retry(1, Remedy.COUNT_SLOW_PROBES, "no time"),
}
"""What is tried again. A graded case is tried again after all others, a timed case at once."""

KINDS = {
    Kind.OUT_OF_MEMORY: Cause.OUT_OF_MEMORY,
    Kind.KILLED: Cause.KILLED,
    Kind.LATE: Cause.LATE,
}
"""The causes that follow from the kind of a failure or of a verdict."""


class Tries:
    """The failed tries of one case, by cause.

    For example:

        tries = Tries()
        while True:
            try:
                return run()
            except Exception as error:
                remedy = tries.remedy(error)
            ...  # apply the remedy
    """

    def __init__(self) -> None:
        """Start without a failure."""
        self._failed = Counter[Cause]()

    def remedy(self, error: Exception) -> Remedy:
        """Return what to do before the next try.

        Raises:
            Failure: CRASHED, if a process was killed although no other process ran.
            Exception: The error itself, if it has no cause in RETRIES or has recurred too often.
        """
        if not (cause := cause_of(error)):
            raise error
        error.__traceback__ = error.__context__ = None  # their frames hold a case's results
        self._failed[cause] += 1
        if self._failed[cause] <= RETRIES[cause].times:
            return RETRIES[cause].remedy
        if cause is Cause.KILLED:
            raise Failure(RETRIES[cause].end, f"{error}, {ISOLATED_TOO}")
        raise error


def cause_of(error: Exception) -> Cause | None:
    """Return the cause outside the solution that a failure may have.

    It is the exception's attribute `cause`, or follows from its class or its kind.
    """
    if isinstance(error, ServerEnded):
        return Cause.SERVER_ENDED
    own = getattr(error, "cause", None)
    return own if isinstance(own, Cause) else KINDS.get(kind_of(error))


class Ends:
    """The successive cases in which a solution's process ended, after which it is not run again."""

    LIMIT = 2
    """The number of these cases."""

    def __init__(self) -> None:
        """Start without an end."""
        self._ends: dict[Solution, list[Failure | ServerEnded]] = defaultdict(list)

    def note(self, solution: Solution, end: Failure | ServerEnded | None) -> None:
        """Add the end of a solution's process in the latest case; None if it went on."""
        self._ends[solution] = [*self._ends[solution], end] if end else []

    def refusal(self, solution: Solution) -> Failure | None:
        """Return the failure of a solution that is not run again; None if it is run.

        Raises:
            ServerEnded: The latest end was the fork server's.
        """
        ends = self._ends[solution]
        if len(ends) < self.LIMIT:
            return None
        if isinstance(end := ends[-1], ServerEnded):
            raise end
        reason = f"not run again after {self.LIMIT} such ends: {end.reason}"
        return Failure(end.verdict, reason, end.kind, end.places)


# --- the workers ----------------------------------------------------------------------------------


Role = Literal["baseline", "reference"]
"""The purpose of a worker that grades no solution: eager is timed next to each solution, or runs in
place of one, to find whether the solution caused a failure."""


class Supervisor:
    """Starts, lends and ends the workers of one device."""

    def __init__(
        self,
        server: ForkServer,
        memory: DeviceMemory,
        deadline: float | None = None,
        late: Callable[[Worker], None] | None = None,
    ) -> None:
        """Start nothing yet.

        Args:
            server: The fork server.
            memory: The run's budget of GPU memory.
            deadline: Seconds for one reply of a worker.
            late: Called with a worker that is late; see `Worker`.
        """
        self.server, self.memory, self.ends = server, memory, Ends()
        self._deadline, self._late = deadline, late
        self._named: dict[tuple[Solution, Role], Worker] = {}
        self._lent: dict[Worker, int] = {}
        """The workers with a case under way, with the bytes that the case may need."""
        self._free: list[Worker] = []
        """The other workers that were lent, the latest at the end."""
        self._changed = threading.Condition()

    @property
    def workers(self) -> list[Worker]:
        """All workers, the least recently lent of the free ones first."""
        with self._changed:
            return [*self._free, *self._named.values(), *self._lent]

    def worker(self, solution: Solution, role: Role) -> Worker:
        """Return the worker of a role; it is never lent."""
        if (solution, role) not in self._named:
            self._named[solution, role] = self._made(solution)
        return self._named[solution, role]

    @contextlib.contextmanager
    def lent(
        self, solution: Solution, needed: int = 0, most: int = sys.maxsize
    ) -> Iterator[Worker]:
        """Lend one of the solution's workers for a case, the latest used that is free.

        Args:
            solution: The solution.
            needed: The bytes of GPU memory that the case may need. The context begins once they fit
                beside the cases under way, if there are any.
            most: The most cases of the solution at the same time; the context begins once there are
                fewer.
        """

        def can_begin() -> bool:
            beside = sum(worker.solution == solution for worker in self._lent)
            fits = sum(self._lent.values()) + needed <= self.memory.budget - IDLE
            return not self._lent or (beside < most and fits)

        with self._changed:
            self._changed.wait_for(can_begin)
            own = [worker for worker in self._free if worker.solution == solution]
            worker = own[-1] if own else self._made(solution)
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
            idle = [each for each in (*self._free, *self._named.values()) if each not in keep]
            releases, ends = [each.release for each in idle], [each.close for each in idle]
            for step in (empty_cache, *releases, *ends):
                if self.memory.left >= needed:
                    return
                step()
                empty_cache()

    @contextlib.contextmanager
    def alone(self, worker: Worker) -> Iterator[None]:
        """End every process; within the context, only the worker may start a new one."""
        for other in self.workers:
            other.close()
        gc.collect()  # the frames of an exception may hold a case's tensors
        empty_cache()
        with worker.isolated():
            yield

    def has_company(self, worker: Worker) -> bool:
        """Return whether workers of other folders may run at the same time as this one."""
        others = (each.solution.handle != worker.solution.handle for each in self.workers)
        return any(others) and not worker.is_isolated

    def close(self) -> None:
        """End all workers and forget their ends; the next use starts others."""
        for worker in self.workers:
            worker.close()
        self._named, self._free, self.ends = {}, [], Ends()

    def _made(self, solution: Solution) -> Worker:
        return Worker(self.server, solution, self._deadline, self.memory.limit, self._late)


def empty_cache() -> None:
    """Return the GPU memory that this process caches to the device."""
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()
