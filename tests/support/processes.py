"""Processes of this machine: whether they live, and one with a thread that does."""

from __future__ import annotations

import contextlib
import subprocess
import sys

from tests.support.waiting import wait_until

SPINS = (
    "import threading, time; threading.Thread(target=time.sleep, args=(600,)).start();"
    "print(1, flush=True)"
)


def state(pid: int) -> str:
    """The letter for what the process does: R, S, T where it is stopped; Z where it has ended."""
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0]
    except OSError:
        return "Z"


def alive(pid: int) -> bool:
    """Whether the process has not ended."""
    return state(pid) != "Z"


def ends(pid: int) -> bool:
    """Whether the process ends, which is waited for."""
    return wait_until(lambda: not alive(pid))


@contextlib.contextmanager
def busy_child():
    """A process with two threads."""
    with subprocess.Popen([sys.executable, "-c", SPINS], stdout=subprocess.PIPE) as child:
        child.stdout.readline()
        try:
            yield child
        finally:
            child.kill()
