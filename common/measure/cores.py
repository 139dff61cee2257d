"""The cores of a process: its time on them and in wait for one, and those that it may use."""

from __future__ import annotations

import contextlib
import os
import random
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from common.processes import processor_time

LOOKED_AT = 4
"""The cores among which the quickest is chosen."""
SELF = "thread-self"
"""In the place of a process's id: the calling thread."""


@dataclass(frozen=True)
class Elapsed:
    """Seconds of a process, so far or between two looks."""

    wall: float
    busy: float
    """Of the processor, over all threads of the process."""
    waited: float = 0.0
    """For which the process or the harness was ready to run and had no core, which other work on
    the machine causes."""

    def since(self, start: Elapsed) -> Elapsed:
        """Return the seconds from an earlier look to this one."""
        waited = self.waited - start.waited
        return Elapsed(self.wall - start.wall, self.busy - start.busy, waited)


def look(pid: int) -> Elapsed:
    """Return a process's seconds so far, to be compared with a later look."""
    return Elapsed(time.perf_counter(), processor_time(pid), _waited(pid) + _waited(SELF))


def _waited(process: int | str) -> float:
    """Return the seconds for which a process's main thread has waited for a core.

    Linux's scheduler keeps them as the second number of `/proc/<pid>/schedstat`, in nanoseconds.
    Where the kernel has none, or the process has ended, they are 0.
    """
    try:
        return int(Path(f"/proc/{process}/schedstat").read_text().split()[1]) / 1e9
    except (OSError, IndexError):
        return 0.0


def quickest(pid: int, probe: Callable[[], float]) -> int:
    """Return the core, of a few drawn ones, on which a process's probe takes the least time.

    A core of a virtual machine, say, has half of its speed while another machine works on the other
    half of the physical core.
    """

    def took(core: int) -> float:
        with kept_on({core}, pid):
            return probe()

    allowed = sorted(_allowed(pid))
    return min(random.sample(allowed, min(LOOKED_AT, len(allowed))), key=took)


def kept_as(pid: int, other: int) -> AbstractContextManager[None]:
    """Keep another process on the cores that the first may use now."""
    return kept_on(_allowed(pid), other)


@contextlib.contextmanager
def kept_on(cores: Collection[int], *pids: int) -> Iterator[None]:
    """Keep processes, with all their threads, on some cores meanwhile."""
    before = {pid: _allowed(pid) for pid in pids}
    for pid in before:
        _keep(pid, cores)
    try:
        yield
    finally:
        for pid, allowed in before.items():
            _keep(pid, allowed)  # threads that began meanwhile, too


def _allowed(pid: int) -> Collection[int]:
    """Return the cores that a process may use; this one's if it has ended."""
    try:
        return os.sched_getaffinity(pid)
    except ProcessLookupError:
        return os.sched_getaffinity(0)


def _keep(pid: int, cores: Collection[int]) -> None:
    """Keep the threads of a process on some cores; one that has ended is left alone."""
    with contextlib.suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError):
                os.sched_setaffinity(int(task), cores)
