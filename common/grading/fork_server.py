"""The harness's hold on the process that every solution's process is forked from."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence

from common.paths import ROOT

LONGEST_FORK = 60.0


LONGEST_END = 5.0


class ServerEnded(Exception):
    """The fork server is gone and its workers with it, whichever of them ended it."""


class ForkServer:
    """One a device: `cpu` runs kernels in Triton's interpreter, `cuda` compiles them.

    A solution may end it. Whoever asked something meanwhile is told `ServerEnded`, and the next to
    ask for a worker starts another.
    """

    MODULE = "common.sandbox.server"

    def __init__(self, device: str, quiet: bool = True) -> None:
        self.device = device
        self._quiet, self._closed = quiet, False
        self._lock = threading.Lock()
        self._start()

    def _start(self) -> None:
        self._control, theirs = socket.socketpair()
        self._control.settimeout(LONGEST_FORK)
        environment = os.environ | {"TRITON_INTERPRET": "1" if self.device == "cpu" else "0"}
        root = str(ROOT)
        output = subprocess.DEVNULL if self._quiet else sys.stderr
        self._process = subprocess.Popen(
            [sys.executable, "-m", self.MODULE, str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            env=environment | {"PYTHONPATH": os.pathsep.join([root, *_python_path()])},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,  # Ctrl-C is for the harness, which then ends the others
        )
        theirs.close()

    def fork(self) -> tuple[int, int, socket.socket]:
        """A fresh process: its server's id, its own, and the socket to it."""
        ours, theirs = socket.socketpair()
        with self._lock, theirs:
            if self._process.poll() is not None and not self._closed:
                self._control.close()
                self._start()
            pid = int(self._asked(b"fork\n", [theirs.fileno()]))
            return self._process.pid, pid, ours

    def runs(self, server: int) -> bool:
        """Is that the server, and does it live?"""
        return server == self._process.pid and self._process.poll() is None

    def reap(self, server: int, pid: int) -> int:
        """Kill the process if it still runs, and all that it started; its exit code, negative for a
        signal. Raises ServerEnded where its server is gone."""
        with self._lock:
            if not self.runs(server):
                raise ServerEnded
            return os.waitstatus_to_exitcode(int(self._asked(f"reap {pid}\n".encode())))

    def _asked(self, request: bytes, fds: Sequence[int] = ()) -> bytes:
        """The answer; a server that gives none is ended, so that the next call starts another."""
        with contextlib.suppress(OSError):
            socket.send_fds(self._control, [request], fds)
            if answer := self._control.recv(64):
                return answer
        self._process.kill()
        self._process.wait()
        raise ServerEnded("the fork server ended; run with --verbose to see why")

    def close(self) -> None:
        """It ends by itself once nobody can ask, and ends all that its workers started."""
        self._closed = True
        self._control.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(LONGEST_END)
        self._process.kill()
        self._process.wait()


def _python_path() -> list[str]:
    return [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
