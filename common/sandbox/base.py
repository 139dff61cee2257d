"""The base: a process that has imported torch, from which fork servers are forked.

torch takes two seconds to import, Triton a quarter of one. Triton's functions become those of its
interpreter, or of its compiler, when they are imported. So what interprets and what compiles share
a process that has torch alone.

`python -m common.sandbox.base FD` serves the socket of that file descriptor.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import runpy
import signal
import socket
import sys
import time
from collections.abc import Sequence

from common.importing import import_torch
from common.wire import Reply

LONGEST_END = 5.0
"""Seconds that fork servers have to end by themselves once the harness has gone."""


def serve(control: socket.socket) -> Reply:
    """Fork a process for each `start` until the harness closes the socket, then wait for all.

    A request is a line of JSON: `{"start": MODULE, "arguments": [...], "environment": {...}}`, sent
    with two file descriptors, of a socket and of the output; the socket is sent the process's id.
    `{"ended": PID}` is answered with whether that process has ended.

    Returns:
        The request, in the process that is to run its module; the base itself does not return.
    """
    running: set[int] = set()
    while (received := _receive(control)) is not None:
        request, fds = received
        if "ended" in request:
            _reap(running)
            control.sendall(b"1" if request["ended"] not in running else b"0")
            continue
        if not (pid := os.fork()):
            control.close()
            _become(request, fds)
            return request
        running.add(pid)
        os.close(fds[1])
        with contextlib.suppress(OSError), socket.socket(fileno=fds[0]) as its:
            its.sendall(str(pid).encode())
    _await(running)
    os._exit(0)


def _receive(control: socket.socket) -> tuple[Reply, list[int]] | None:
    """Return a request and its file descriptors, None once the harness has closed the socket."""
    line, kept = b"", list[int]()
    while not line.endswith(b"\n"):
        chunk, fds, _, _ = socket.recv_fds(control, 1 << 20, 2)
        if not chunk:
            return None
        line, kept = line + chunk, kept + fds
    return dict(json.loads(line)), kept


def _become(request: Reply, fds: Sequence[int]) -> None:
    """Take the environment and the output of the request; die with the base."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    os.setsid()
    for stream in (1, 2):
        os.dup2(fds[1], stream)
    os.close(fds[1])
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.argv[1:] = [str(fds[0]), *request["arguments"]]


def _reap(running: set[int]) -> None:
    """Forget the processes that have ended."""
    for pid in list(running):
        if os.waitpid(pid, os.WNOHANG)[0]:
            running.discard(pid)


def _await(running: set[int]) -> None:
    """Wait until all have ended, since they die with the base, before they end their workers."""
    end = time.monotonic() + LONGEST_END
    while running and time.monotonic() < end:
        time.sleep(0.01)
        _reap(running)


if __name__ == "__main__":
    from common.sandbox import base

    import_torch()
    with contextlib.closing(socket.socket(fileno=int(sys.argv[1]))) as control:
        asked = base.serve(control)
    # the module under its own name, so that a worker has one copy of it
    runpy.run_module(asked["start"], run_name="__main__", alter_sys=True)
