"""A process's processor time, its time in wait for a core, and the cores that it may use."""

from __future__ import annotations

import contextlib
import os
import random
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from common.processes import processor_time

LOOKED_AT = 4
"""The number of cores among which the quickest is chosen."""


@dataclass(frozen=True)
class Elapsed:
    """The times of a process in seconds, since its start or between two calls of `look`."""

    wall: float
    """Wall time."""
    busy: float
    """Processor time, summed over all threads of the process."""
    waited: float = 0.0
    """Time in which the process or the harness was ready to run and had no core, because of other
    work on the machine."""

    def since(self, start: Elapsed) -> Elapsed:
        """Return the times from an earlier `look` to this one."""
        waited = self.waited - start.waited
        return Elapsed(self.wall - start.wall, self.busy - start.busy, waited)


def look(pid: int) -> Elapsed:
    """Return a process's times so far, to be subtracted from a later result."""
    waited = sum(map(_waited, (f"/proc/{pid}", "/proc/thread-self")))
    return Elapsed(time.perf_counter(), processor_time(pid), waited)


def _waited(process: str) -> float:
    """Return the seconds that a process's main thread, or a thread, has waited for a core.

    Linux's scheduler keeps them as the second number of `schedstat`, in nanoseconds. The result is
    0 if the kernel has no such file or the process has ended.
    """
    try:
        return int(Path(process, "schedstat").read_text().split()[1]) / 1e9
    except (OSError, IndexError):
        return 0.0


def quickest(pid: int, probe: Callable[[], float]) -> int:
    """Return the core, of LOOKED_AT random ones, on which a process's probe takes the least time.

    The speeds of cores differ: a virtual machine's core, for example, runs at half speed while
    another machine uses the other hyperthread of the physical core.
    """

    def probe_time(core: int) -> float:
        with kept_on({core}, pid):
            return probe()

    cores = sorted(allowed(pid))
    return min(random.sample(cores, min(LOOKED_AT, len(cores))), key=probe_time)


@contextlib.contextmanager
def kept_on(cores: Collection[int], *pids: int) -> Iterator[None]:
    """Keep processes, with all their threads, on `cores` within the context."""
    before = {pid: allowed(pid) for pid in pids}
    for pid in before:
        _keep(pid, cores)
    try:
        yield
    finally:
        for pid, own in before.items():
            _keep(pid, own)  # includes threads that were started within the context


def allowed(pid: int) -> Collection[int]:
    """Return the cores that a process may use; the harness's cores if the process has ended."""
    try:
        return os.sched_getaffinity(pid)
    except ProcessLookupError:
        return os.sched_getaffinity(0)


def _keep(pid: int, cores: Collection[int]) -> None:
    """Keep the threads of a process on `cores`; do nothing for an ended process or thread."""
    with contextlib.suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError):
                os.sched_setaffinity(int(task), cores)
