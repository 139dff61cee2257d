"""The fork server: it imports torch and Triton once, and forks a process for each solution.

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
from collections.abc import Collection

import msgspec

from common.processes import import_torch, parents
from common.wire import STACK, Done, ForkRequest, Order, Reap, receive, send


def run(control: socket.socket) -> None:
    """Carry out orders until the harness closes the socket, then kill all remaining processes."""
    signal.signal(STACK, signal.SIG_IGN)  # until a worker's process can answer it
    import_torch()
    import torch._functorch.config

    from common.sandbox import process, target

    torch._functorch.config.donated_buffer = False  # a compiled backward may have to keep its graph

    server, workers = os.getpid(), set[int]()
    ctypes.CDLL(None).prctl(36, 1)  # PR_SET_CHILD_SUBREAPER: orphans of workers become children
    while (received := receive(control))[0]:
        line, fds = received
        match msgspec.json.decode(line, type=Order):
            case ForkRequest() as wanted:
                if wanted.target and not wanted.counted:
                    target.warm(wanted.full)
                # imported objects stay alive; each collection of a worker would traverse them for
                # 0.1 s
                gc.freeze()
                if not (pid := os.fork()):
                    control.close()
                    code = 1
                    try:
                        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                            process.become_worker(
                                server, wanted, socket.socket(fileno=fds[0]), *fds[1:]
                            )
                        code = 0
                    except BaseException:
                        traceback.print_exc()
                    finally:
                        os._exit(code)  # the fork must not continue this loop as a second server
                workers.add(pid)
                for fd in fds:
                    os.close(fd)
                send(control, Done(pid))
            case Reap(pid):
                workers.discard(pid)
                (status,) = _end([pid])
                _end_strays(workers)
                send(control, Done(status))
    _end_strays(set())


def _end(pids: Collection[int]) -> list[int]:
    """Kill children and their process groups; return their wait statuses."""
    for pid in pids:
        for kill in (os.killpg, os.kill):  # a fresh fork has no process group of its own yet
            with contextlib.suppress(ProcessLookupError):
                kill(pid, signal.SIGKILL)
    return [os.waitpid(pid, 0)[1] for pid in pids]


def _end_strays(workers: set[int]) -> None:
    """End every child of this process that is no worker: orphans of workers, 100 of a chain."""
    for _ in range(100):
        if not _end({child for child, parent in parents() if parent == os.getpid()} - workers):
            return


if __name__ == "__main__":
    from common.sandbox import server

    # imported under its own name, so that a worker has only one copy of the module
    server.run(socket.socket(fileno=int(sys.argv[1])))
    os._exit(0)  # Python would take a third of a second to unload torch
