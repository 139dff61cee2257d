"""The harness's side of the fork server, from which each solution's process is forked."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from typing import ClassVar

import msgspec

from common import wire
from common.errors import ServerEnded
from common.paths import CACHE, ROOT

LONGEST_IMPORT = 60.0
"""The most seconds that the server may take to import torch."""
LONGEST_END = 5.0
"""The seconds in which the server must exit by itself once its socket is closed."""
UNREAD = {"PYTEST_CURRENT_TEST"}
"""Environment variables that change during a run, and that no library reads on import."""
FIXED = {
    # import Triton's own functions as compiled functions; an interpreting process replaces them
    "TRITON_INTERPRET": "0",
    # numpy reads this on import. The interpreter's products are small, and several solutions run at
    # once: on busy cores, a 128x64x128 product on two threads took a hundred times the processor
    # time that it takes on one thread
    "OPENBLAS_NUM_THREADS": "1",
    # no AMX: there torch's product of a bfloat16 matrix that is a slice reads behind the slice's
    # rows, so that a NaN next to the argument reaches the result (torch 2.13)
    "ONEDNN_MAX_CPU_ISA": "AVX512_CORE_FP16",
}
NO_ANSWER = "the fork server ended; torch or triton may fail to import: --verbose shows why"


class Process:
    """One fork server's process; all ForkServers of the same environment share it."""

    _running: ClassVar[dict[tuple[object, ...], Process]] = {}
    """The processes by module, folder and environment."""
    _running_lock = threading.Lock()

    def __init__(self, module: str, quiet: bool) -> None:
        """Run a module for one ForkServer; with `quiet`, drop its and its workers' output."""
        output = subprocess.DEVNULL if quiet else sys.stderr.fileno()
        self.users = 1
        """The number of ForkServers that use the process."""
        self._lock = threading.Lock()
        self._control, server_end = socket.socketpair()
        self._control.settimeout(LONGEST_IMPORT)
        path = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        with server_end:
            self._process = subprocess.Popen(
                [sys.executable, "-m", module, str(server_end.fileno())],
                pass_fds=[server_end.fileno()],
                env=os.environ | FIXED | {"PYTHONPATH": os.pathsep.join(path)},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,  # only the harness gets Ctrl-C; it then ends the processes
            )

    @classmethod
    def acquire(cls, module: str, quiet: bool) -> Process:
        """Return the process for the current environment; the caller must release it once."""
        environment = {name: value for name, value in os.environ.items() if name not in UNREAD}
        key = (module, os.getcwd(), quiet, *sorted(environment.items()))
        with cls._running_lock:
            process = cls._running.get(key)
            if process and process.users and not process.ended:
                process.users += 1
            else:
                process = cls._running[key] = cls(module, quiet)
            return process

    def release(self) -> None:
        """Give up one use of the process; the last release ends it."""
        with self._running_lock:
            self.users -= 1
            if self.users:
                return
        self._control.close()  # the process exits once its socket is closed
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(LONGEST_END)
        self.kill()

    def kill(self) -> None:
        """Kill the process, which also ends all processes that were forked from it."""
        self._process.kill()
        self._process.wait()

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    @property
    def ended(self) -> bool:
        """Whether the process has ended."""
        return self._process.poll() is not None

    def ask(self, order: wire.Order, fds: Sequence[int] = ()) -> int:
        """Return the number that answers an order; the first waits for the import of torch.

        Raises:
            ServerEnded: No answer came; the process was killed.
        """
        with self._lock, contextlib.suppress(OSError, msgspec.DecodeError):
            wire.send(self._control, order, fds)
            return msgspec.json.decode(wire.receive(self._control)[0], type=wire.Done).number
        self.kill()
        raise ServerEnded(NO_ANSWER)


class ForkServer:
    """Forks the processes of one device: `cpu`, with Triton's interpreter, or `cuda`.

    On `cpu` the processes see no GPU, even if the machine has one.

    A solution may end the server. Requests under way then raise ServerEnded, and the next fork
    starts another server.
    """

    MODULE = "common.sandbox.server"

    def __init__(
        self,
        device: str,
        quiet: bool = True,
        target: str = "",
        counted: bool = False,
        full: bool = False,
    ) -> None:
        """Start the server's process, unless another ForkServer has started it.

        Args:
            device: `cpu` or `cuda`.
            quiet: Whether the output of the server and of its workers is dropped.
            target: The GPU, such as `sm_90`, for which kernels are compiled instead of run.
            counted: Whether the kernels' work for the target is counted in the interpreter instead.
            full: Whether kernels are compiled to the end, not only as far as a verdict needs.
        """
        self.device = device
        self._request = wire.ForkRequest(device, target, counted, str(CACHE / "kernels"), full)
        self._quiet, self._closed = quiet, False
        self.interrupted = False
        """Whether `fork` raises ServerEnded until `resume` is called."""
        self._forked: set[int] = set()
        self._lock = threading.Lock()
        self._process = Process.acquire(self.MODULE, quiet)

    def fork(self, stack: int | None = None) -> tuple[int, int, socket.socket]:
        """Fork a process; return the server's id, the process's id, and the socket to it.

        `stack` is the file to which the process writes its stack on the signal `wire.STACK`.

        Raises:
            ServerEnded: The server ended, is closed, or is interrupted.
        """
        connection, worker_end = socket.socketpair()
        with self._lock, worker_end:
            if self._closed:
                raise ServerEnded("closed")
            if self._process.ended:
                self._replace(Process.acquire)
            if self.interrupted:
                raise ServerEnded("interrupted")
            fds = [worker_end.fileno(), *([] if stack is None else [stack])]
            pid = self._process.ask(self._request, fds)
            self._forked.add(pid)
            if self.interrupted:  # since the check above
                os.kill(pid, signal.SIGKILL)
            return self._process.pid, pid, connection

    def separate(self) -> None:
        """From now on, fork from a process that no other ForkServer uses.

        Only this server's workers can then end it. Its earlier workers must have ended.
        """
        with self._lock:
            if self._process.users > 1 and not self._closed:
                self._replace(Process)

    def _replace(self, start: Callable[[str, bool], Process]) -> None:
        self._forked.clear()
        self._process.release()
        self._process = start(self.MODULE, self._quiet)

    def runs(self, server: int) -> bool:
        """Return whether this id is the current server's and the server still runs."""
        return server == self._process.pid and not self._process.ended

    def is_only(self, pid: int) -> bool:
        """Return whether no other process that was forked here lives and may hold GPU memory."""
        return self._forked <= {pid}

    def reap(self, server: int, pid: int) -> int:
        """Kill a process that `server` forked, and every process that it started.

        Return the process's exit code; for a signal, its number negated.

        Raises:
            ServerEnded: The server that forked the process has ended, or is closed.
        """
        with self._lock:
            if not self.runs(server) or pid not in self._forked:
                raise ServerEnded
            self._forked.discard(pid)
            return os.waitstatus_to_exitcode(self._process.ask(wire.Reap(pid)))

    def interrupt(self) -> None:
        """Kill every forked process, and fork no more until `resume`.

        Takes no lock, since any thread and any signal handler may call it. The killed processes are
        not reaped here, so that the system does not reuse their ids.
        """
        self.interrupted = True
        for pid in list(self._forked):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def resume(self) -> None:
        """Allow forks again after `interrupt`."""
        self.interrupted = False

    def close(self) -> None:
        """End the processes; if no other ForkServer uses the server's process, end it too."""
        self.interrupt()
        with self._lock:
            if self._closed:
                return
            self._closed = True
            with contextlib.suppress(ServerEnded):
                for pid in self._forked:
                    self._process.ask(wire.Reap(pid))
            self._process.release()
