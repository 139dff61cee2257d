"""The harness's hold on the fork server, from which each solution's process is forked."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from typing import ClassVar, TypeVar

import msgspec

from common import wire
from common.errors import ServerEnded
from common.paths import CACHE, ROOT

TARGET = "sm_90"
"""The GPU that stands in where there is none: an H100 or H200."""
LONGEST_IMPORT = 60.0
"""Seconds in which torch is imported."""
LONGEST_END = 5.0
"""Seconds in which the server must end by itself once its socket is closed."""
UNREAD = {"PYTEST_CURRENT_TEST"}
"""Variables that change while the harness runs, and that no library reads when it is imported."""
FIXED = {
    # Triton's own functions are compiled ones; a process that interprets makes others of them
    "TRITON_INTERPRET": "0",
    # numpy reads it when it is imported. Several solutions run at once, and the interpreter's
    # products are small: on two threads one of 128x64x128 took a hundred times the processor time
    # that it takes on one, where other processes kept the cores busy
    "OPENBLAS_NUM_THREADS": "1",
}
NO_ANSWER = "the fork server ended, as where torch or triton does not import: --verbose shows why"
Answer = TypeVar("Answer")


class Process:
    """One process that has imported torch; all ForkServers of one environment share it."""

    _known: ClassVar[dict[tuple[object, ...], Process]] = {}
    _all = threading.Lock()

    def __init__(self, module: str, output: int) -> None:
        """Run a module; its output and that of its workers goes to a file descriptor."""
        self._users = 0
        self._lock = threading.Lock()
        self._control, theirs = socket.socketpair()
        self._control.settimeout(LONGEST_IMPORT)
        path = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", module, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                env=os.environ | FIXED | {"PYTHONPATH": os.pathsep.join(path)},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,  # Ctrl-C is for the harness, which then ends the others
            )

    @classmethod
    def acquire(cls, module: str, quiet: bool) -> Process:
        """Return the process of the present environment; the caller releases it once."""
        environment = {name: value for name, value in os.environ.items() if name not in UNREAD}
        key = (module, os.getcwd(), quiet, *sorted(environment.items()))
        with cls._all:
            process = cls._known.get(key)
            if process is None or process.ended:
                output = subprocess.DEVNULL if quiet else sys.stderr.fileno()
                process = cls._known[key] = cls(module, output)
            process._users += 1
            return process

    def release(self) -> None:
        """End the process, which ends by itself once its socket is closed, after its last use."""
        with self._all:
            self._users -= 1
            if self._users:
                return
            for key in [key for key, process in self._known.items() if process is self]:
                del self._known[key]
        self._control.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(LONGEST_END)
        self.kill()

    def kill(self) -> None:
        """End the process, and by that all that were forked from it."""
        self._process.kill()
        self._process.wait()

    @property
    def pid(self) -> int:
        """Its id."""
        return self._process.pid

    @property
    def ended(self) -> bool:
        """Whether it has ended."""
        return self._process.poll() is not None

    def ask(self, order: wire.Order, answer: type[Answer], fds: Sequence[int] = ()) -> Answer:
        """Return the answer to an order; the first one waits for the import of torch.

        Raises:
            ServerEnded: No answer came; the process is ended.
        """
        with self._lock, contextlib.suppress(OSError, msgspec.DecodeError):
            wire.send(self._control, order, fds)
            return msgspec.json.decode(wire.receive(self._control)[0], type=answer)
        self.kill()
        raise ServerEnded(NO_ANSWER)


class ForkServer:
    """A fork server's processes of one kind, on `cpu` in Triton's interpreter, or on `cuda`.

    The processes of `cpu` see no GPU, whatever the machine has.

    A solution may end the server. Requests under way then raise ServerEnded, and the next fork
    starts another server.
    """

    MODULE = "common.sandbox.server"

    def __init__(
        self, device: str, quiet: bool = True, target: str = "", counted: bool = False
    ) -> None:
        """Start the server, unless it has started for others.

        Args:
            device: `cpu` or `cuda`.
            quiet: Whether the output of the server and of its workers is dropped.
            target: The GPU to compile for, `sm_90` say, in the place of running anything.
            counted: Whether work for the target is counted under the interpreter instead.
        """
        self.device = device
        self._wanted = wire.ForkRequest(device, target, counted, str(CACHE / "kernels"))
        self._quiet, self._closed = quiet, False
        self.interrupted = False
        """Whether no process is forked until `resume`."""
        self._forked: set[int] = set()
        self._lock = threading.Lock()
        self._process = Process.acquire(self.MODULE, quiet)

    def fork(self) -> tuple[int, int, socket.socket]:
        """Fork a process; return its server's id, its own id, and the socket to it."""
        ours, theirs = socket.socketpair()
        with self._lock, theirs:
            if self._closed:
                raise ServerEnded("closed")
            if self._process.ended:
                self._forked.clear()
                self._process.release()
                self._process = Process.acquire(self.MODULE, self._quiet)
            if self.interrupted:
                raise ServerEnded("interrupted")
            pid = self._process.ask(self._wanted, wire.Forked, [theirs.fileno()]).pid
            self._forked.add(pid)
            if self.interrupted:  # meanwhile
                os.kill(pid, signal.SIGKILL)
            return self._process.pid, pid, ours

    def runs(self, server: int) -> bool:
        """Return whether the server with this id is the present one and still runs."""
        return server == self._process.pid and not self._process.ended

    def reap(self, server: int, pid: int) -> int:
        """Kill a process that this server forked, and every process that it started.

        Returns:
            The process's exit code; for a signal, its number negated.

        Raises:
            ServerEnded: The server that forked the process has ended, or is closed.
        """
        with self._lock:
            if not self.runs(server) or pid not in self._forked:
                raise ServerEnded
            return self._reap(pid)

    def _reap(self, pid: int) -> int:
        self._forked.discard(pid)
        return os.waitstatus_to_exitcode(self._process.ask(wire.Reap(pid), wire.Reaped).status)

    def interrupt(self) -> None:
        """Kill every process that was forked, and fork none until `resume`.

        Any thread and any signal handler may call it, so it takes no lock. The processes stay to be
        reaped, so that their ids are theirs.
        """
        self.interrupted = True
        for pid in list(self._forked):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def resume(self) -> None:
        """Fork again after an interruption."""
        self.interrupted = False

    def close(self) -> None:
        """End the processes, and the server with the last that uses it."""
        self.interrupt()
        with self._lock:
            if self._closed:
                return
            self._closed = True
            with contextlib.suppress(ServerEnded):
                for pid in list(self._forked):
                    self._reap(pid)
            self._process.release()
