"""The cores that processes may use: one that several take turns on, a quick one."""

from __future__ import annotations

import contextlib
import os
import random
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager

LOOKED_AT = 4
"""The cores among which the quickest is chosen."""


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
