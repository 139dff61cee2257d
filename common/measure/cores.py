"""The time of a process: by the wall, on its cores, and in wait for a core."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from common.processes import processor_time

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
