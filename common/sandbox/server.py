"""The fork server: it has imported torch and triton, and forks a process for each solution.

`python -m common.sandbox.server FD` serves the socket of that file descriptor.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import signal
import socket
import sys
import traceback

import msgspec

from common.importing import import_torch
from common.processes import parents
from common.wire import Forked, ForkRequest, Order, Reap, Reaped, receive, send

GENERATIONS = 100
"""Of processes that a solution leaves behind, each started by the one before."""


def run(control: socket.socket) -> None:
    """Carry out orders until the harness closes the socket, then end every process left."""
    import_torch()
    from common.sandbox import backend, process

    server, workers = os.getpid(), set[int]()
    ctypes.CDLL(None).prctl(36, 1)  # PR_SET_CHILD_SUBREAPER: what workers leave behind comes here
    while (received := receive(control))[0]:
        line, fds = received
        match msgspec.json.decode(line, type=Order):
            case ForkRequest() as wanted:
                backend.warm(wanted)
                # what is imported stays; each of a worker's collections would take 0.1 s to walk it
                gc.freeze()
                if not (pid := os.fork()):
                    control.close()
                    code = 1
                    try:
                        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                            process.become_worker(socket.socket(fileno=fds[0]), server, wanted)
                        code = 0
                    except BaseException:
                        traceback.print_exc()
                    finally:
                        os._exit(code)  # as a fork it must not go on as the server
                workers.add(pid)
                os.close(fds[0])
                send(control, Forked(pid))
            case Reap(pid):
                send(control, Reaped(_reap(pid, workers)))
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
        children = {child for child, parent in parents() if parent == os.getpid()}
        if not (strays := children - workers):
            return
        for pid in strays:
            _kill(pid)
            os.waitpid(pid, 0)


if __name__ == "__main__":
    from common.sandbox import server

    # the module under its own name, so that a worker has one copy of it
    server.run(socket.socket(fileno=int(sys.argv[1])))
    os._exit(0)  # Python would take a third of a second to let go of torch
