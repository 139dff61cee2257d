"""The fork server: it has imported torch and triton, and forks a process for each solution.

`python -m common.sandbox.server FD` serves the socket of that file descriptor. With `light` as a
further argument it imports torch.compile's modules, `torch._dynamo`, when it is asked to `grow`.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import signal
import socket
import sys
import time

from common.processes import parents
from common.sandbox import backend, process

GENERATIONS = 100
"""Of processes that a solution leaves behind, each started by the one before."""
LAST_BREATH = 0.05
"""Seconds in which a process that is ending by itself reaches its own exit code."""


def run(control: socket.socket, light: bool = False) -> None:
    """Answer requests until the harness closes the socket, then end every process left.

    `fork`, sent with a socket for the child, is answered with the child's process id; `reap PID`
    ends that worker and is answered with its wait status, and so is `end PID`, which gives the
    worker no time to end by itself; `grow` is answered once torch._dynamo is imported.
    """
    server = os.getpid()
    process.stay_light() if light else process.grow()
    backend.warm()
    # what is imported stays; each of a worker's many collections would take 0.1 s to walk over it
    gc.freeze()
    ctypes.CDLL(None).prctl(36, 1)  # PR_SET_CHILD_SUBREAPER: what workers leave behind comes here
    workers: set[int] = set()
    while True:
        request, fds, _, _ = socket.recv_fds(control, 64, 1)
        if not request:
            break
        words = request.split()
        if words[0] in (b"reap", b"end"):
            time.sleep(LAST_BREATH if words[0] == b"reap" else 0)
            control.sendall(str(_reap(int(words[1]), workers)).encode())
            continue
        if words[0] == b"grow":
            process.grow()
            gc.freeze()
            control.sendall(b"grown")
            continue
        pid = os.fork()
        if pid == 0:
            control.close()
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                process.become_worker(socket.socket(fileno=fds[0]), server)
            os._exit(0)
        workers.add(pid)
        os.close(fds[0])
        control.sendall(str(pid).encode())
    for pid in list(workers):
        _kill(pid)
    _end_strays(set())


def _reap(pid: int, workers: set[int]) -> int:
    """End a worker and the processes that workers left behind; return its wait status."""
    _kill(pid)
    status = os.waitpid(pid, 0)[1]
    workers.discard(pid)
    _end_strays(workers)
    return status


def _kill(pid: int) -> None:
    for kill in (os.killpg, os.kill):  # it may not lead a group of its own yet
        with contextlib.suppress(ProcessLookupError):
            kill(pid, signal.SIGKILL)


def _end_strays(workers: set[int]) -> None:
    """End every child of this process that is no worker: its parent died and left it here."""
    for _ in range(GENERATIONS):
        if not (strays := _children() - workers):
            return
        for pid in strays:
            _kill(pid)
            os.waitpid(pid, 0)


def _children() -> set[int]:
    return {child for child, parent in parents() if parent == os.getpid()}


if __name__ == "__main__":
    from common.sandbox import server

    # the module under its own name, so that a worker has one copy of it
    server.run(socket.socket(fileno=int(sys.argv[1])), "light" in sys.argv)
    os._exit(0)  # Python would take a third of a second to let go of torch
