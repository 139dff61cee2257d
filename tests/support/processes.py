"""Processes of this machine: programs that end, whether one lives, and one with a thread."""

import contextlib
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.support.waiting import LONGEST, wait_until

SPINS = (
    "import threading, time; threading.Thread(target=time.sleep, args=(600,)).start();"
    "print(1, flush=True)"
)


def run(*command: str | Path, timeout: float = LONGEST, **how: Any) -> subprocess.CompletedProcess:
    """Run a program until it ends, and keep what it prints."""
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, **how)


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
