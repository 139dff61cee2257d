"""The harness's hold on the fork server, from which each solution's process is forked."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import threading
from collections.abc import Sequence

from common.errors import ServerEnded
from common.grading.base import Base
from common.paths import CACHE
from common.processes import VISIBLE

TARGET = "sm_90"
"""The GPU that stands in where there is none: an H100 or H200."""
LONGEST_END = 5.0
"""Seconds in which it must end by itself once its socket is closed."""


NO_ANSWER = "the fork server ended, as where torch or triton does not import: --verbose shows why"


class ForkServer:
    """The fork server of one device: `cpu` runs kernels in Triton's interpreter, `cuda` compiles.

    The processes of `cpu` see no GPU, whatever the machine has.

    With a target, kernels are compiled for that GPU and not run, or, with `counted`, their work is
    counted under the interpreter.

    A solution may end it. Requests under way then raise ServerEnded, and the next fork starts
    another server.
    """

    MODULE = "common.sandbox.server"

    def __init__(
        self,
        device: str,
        quiet: bool = True,
        light: bool = False,
        target: str = "",
        counted: bool = False,
    ) -> None:
        """Start the server.

        Args:
            device: `cpu` or `cuda`.
            quiet: Whether the output of the server and of its workers is dropped.
            light: Whether to start without torch.compile's modules, which take as long to import
                as torch. A worker that needs them says so; see `grow`.
            target: The GPU to compile for, `sm_90` say, in the place of running anything.
            counted: Whether work for the target is counted under the interpreter instead.
        """
        self.device, self.light = device, light
        self._target, self._counted = target, counted
        self._quiet, self._closed = quiet, False
        self._forked: set[int] = set()
        self._interrupted = False
        self._lock = threading.Lock()
        self._start()

    def _start(self) -> None:
        self._forked.clear()
        self._base = Base.acquire(self._quiet)
        interpreted = self.device == "cpu" and (self._counted or not self._target)
        changed = {"TRITON_INTERPRET": "1" if interpreted else "0", "STUDY_TARGET": self._target}
        if self.device == "cpu":
            changed[VISIBLE] = ""
        if self._target:
            changed["TRITON_CACHE_DIR"] = str(CACHE / "kernels")
        with open(os.devnull, "wb") as nowhere:
            output = nowhere if self._quiet else sys.stderr
            arguments = ["light"] * self.light
            self._process = self._base.start(self.MODULE, arguments, changed, output.fileno())

    def _end(self) -> None:
        """End the server, which ends by itself once its socket is closed."""
        self._process.control.close()
        self._process.wait(LONGEST_END)
        self._process.kill()
        self._base.release()

    def fork(self) -> tuple[int, int, socket.socket]:
        """Fork a process; return its server's id, its own id, and the socket to it."""
        ours, theirs = socket.socketpair()
        with self._lock, theirs:
            if self._process.ended and not self._closed:
                self._end()
                self._start()
            if self._interrupted:
                raise ServerEnded("interrupted")
            pid = int(self._ask(b"fork\n", [theirs.fileno()]))
            self._forked.add(pid)
            if self._interrupted:  # meanwhile
                os.kill(pid, signal.SIGKILL)
            return self._process.pid, pid, ours

    def grow(self) -> None:
        """Import torch.compile's modules in the server, for the workers to come."""
        with self._lock:
            if self.light:
                self.light = False
                with contextlib.suppress(ServerEnded):  # the next one starts with them
                    self._ask(b"grow\n")

    def runs(self, server: int) -> bool:
        """Return whether the server with this id is the present one and still runs."""
        return server == self._process.pid and not self._process.ended

    def reap(self, server: int, pid: int, at_once: bool = False) -> int:
        """Kill a process that this server forked, and every process that it started.

        Args:
            server: The server's id.
            pid: The process's id.
            at_once: Whether a process that is ending by itself need not reach its own exit code.

        Returns:
            The process's exit code; for a signal, its number negated.

        Raises:
            ServerEnded: The server that forked the process has ended.
        """
        with self._lock:
            if not self.runs(server):
                raise ServerEnded
            self._forked.discard(pid)
            request = f"{'end' if at_once else 'reap'} {pid}\n"
            return os.waitstatus_to_exitcode(int(self._ask(request.encode())))

    def interrupt(self) -> None:
        """Kill every process that was forked, and fork none until `resume`.

        Any thread and any signal handler may call it, so it takes no lock. The processes stay to be
        reaped, so that their ids are theirs.
        """
        self._interrupted = True
        for pid in list(self._forked):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    @property
    def interrupted(self) -> bool:
        """Whether no process is forked until `resume`."""
        return self._interrupted

    def resume(self) -> None:
        """Fork again after an interruption."""
        self._interrupted = False

    def _ask(self, request: bytes, fds: Sequence[int] = ()) -> bytes:
        """Return the server's answer; end a server that gives none, so that the next fork works."""
        with contextlib.suppress(OSError):
            self._process.pid  # noqa: B018  # the server's id comes before its first answer
            socket.send_fds(self._process.control, [request], fds)
            if answer := self._process.control.recv(64):
                return answer
        self._process.kill()
        raise ServerEnded(NO_ANSWER)

    def close(self) -> None:
        """Close the server's socket, on which it ends itself and all that its workers started."""
        if not self._closed:
            self._closed = True
            self._end()
