"""The harness's clock of a process, and the cores that a process may use."""

from __future__ import annotations

import contextlib
import os
import random
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

LOOKED_AT = 4
"""The number of cores among which the quickest is chosen."""


def look(pid: int) -> float:
    """Return the seconds of a clock that stops while a process's main thread waits for a core.

    Other work on the machine thus hardly lengthens what the clock measures. Linux's scheduler keeps
    the waits as the second number of `schedstat`, in nanoseconds; there are none if the kernel has
    no such file or the process has ended. A wait counts at its end: before a measurement, `settle`.
    """
    waited = 0.0
    with contextlib.suppress(OSError, IndexError):
        waited = int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e9
    return time.perf_counter() - waited


def settle(pid: int) -> None:
    """Wait until a process that has answered all requests sleeps, or for a second."""
    end = time.monotonic() + 1.0
    with contextlib.suppress(OSError):
        while time.monotonic() < end:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "S":
                break
            time.sleep(1e-4)


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
