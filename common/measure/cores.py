"""The harness's clock of a process, and the cores that a process may use."""

from __future__ import annotations

import contextlib
import os
import random
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

from common.processes import processor_time

LOOKED_AT = 4
"""The number of cores among which the quickest is chosen."""
LONGEST_WAIT = 1.0
"""The seconds in which a process that has answered all requests goes to sleep."""


def started(pid: int) -> Callable[[], float]:
    """Start a clock of a process that waits for a request; return a function that reads it.

    The clock shows seconds of wall time, less those in which the process's main thread waited for a
    core, so that other work on the machine hardly lengthens them. A process could starve its own
    main thread while another thread works: the processor time of its threads counts at least.
    """
    end = time.monotonic() + LONGEST_WAIT
    with contextlib.suppress(OSError):  # a wait counts at its end, so that none may be under way
        while Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "S":
            if time.monotonic() > end:
                break
            time.sleep(1e-4)
    start = _look(pid)

    def seconds() -> float:
        wall, waited, busy = (now - before for now, before in zip(_look(pid), start, strict=True))
        return max(wall - waited, min(wall, busy))

    return seconds


def _look(pid: int) -> tuple[float, float, float]:
    """Return the wall time, a process's waits for a core and its processor time, in seconds.

    Linux's scheduler keeps the waits as the second number of `schedstat`, in nanoseconds; there are
    none if the kernel has no such file or the process has ended.
    """
    waited = 0.0
    with contextlib.suppress(OSError, IndexError):
        waited = int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e9
    return time.perf_counter(), waited, processor_time(pid)


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
