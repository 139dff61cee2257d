"""The harness's hold on a solution's own process: deadline, crash, restart.

A fork server imports torch and triton once and runs neither; each worker is forked from it and
talks over a socket in lines of JSON, one reply to each request. See `inside.py` for the other side.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from common.arena import Arena
from common.solutions import Solution

DEADLINE = {"cpu": 20.0, "cuda": 120.0}
"""Seconds for one answer: a case takes the interpreter a few, and a GPU's first call compiles."""
LIVES = 2
LARGEST_REPLY = 64 << 20
Reply = dict[str, Any]


class Died(Exception):
    """The worker did not answer. `verdict` is CRASHED or TIMEOUT."""

    def __init__(self, verdict: str, reason: str) -> None:
        super().__init__(reason)
        self.verdict, self.reason = verdict, reason


class ForkServer:
    """One a device: `cpu` runs kernels in Triton's interpreter, `cuda` compiles them."""

    def __init__(self, device: str, quiet: bool = True) -> None:
        self.device = device
        self._lock = threading.Lock()
        self._control, theirs = socket.socketpair()
        environment = os.environ | {"TRITON_INTERPRET": "1" if device == "cpu" else "0"}
        root = str(Path(__file__).parents[1])
        output = subprocess.DEVNULL if quiet else sys.stderr
        self._process = subprocess.Popen(
            [sys.executable, "-m", "common.inside", str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            env=environment | {"PYTHONPATH": os.pathsep.join([root, *_python_path()])},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,  # Ctrl-C is for the harness, which then ends the others
        )
        theirs.close()

    def fork(self) -> tuple[int, socket.socket]:
        """A fresh process: its id and the socket to it."""
        ours, theirs = socket.socketpair()
        with self._lock:
            socket.send_fds(self._control, [b"fork\n"], [theirs.fileno()])
            theirs.close()
            return int(self._answer()), ours

    def reap(self, pid: int) -> int:
        """Kill the process if it still runs; its exit code, negative for a signal."""
        with self._lock:
            try:
                self._control.sendall(f"reap {pid}\n".encode())
                return os.waitstatus_to_exitcode(int(self._answer()))
            except OSError:  # the server is gone, and its workers with it
                return -signal.SIGKILL

    def _answer(self) -> bytes:
        answer = self._control.recv(64)
        if not answer:
            raise BrokenPipeError("the fork server ended; run with --verbose to see why")
        return answer

    def close(self) -> None:
        self._control.close()
        self._process.kill()
        self._process.wait()


class Worker:
    """The process of one solution, started when first called and again after each death."""

    def __init__(
        self,
        server: ForkServer,
        solution: Solution,
        deadline: float | None = None,
        lives: float = LIVES,
    ) -> None:
        self.solution, self.lives = solution, lives
        self.deadline = deadline or DEADLINE[server.device]
        self._server = server
        self._pid = 0
        self._socket: socket.socket | None = None
        self._arena: Arena | None = None
        self._deaths: list[Died] = []
        self._number = 0
        self._loaded: Reply = {}

    def arena(self, nbytes: int) -> Arena:
        """The memory shared with this worker, at least so large."""
        if self._arena is None or self._arena.nbytes < nbytes:
            if self._arena:
                self._arena.close()
            self._arena = Arena(self._server.device, nbytes)
            if self._socket:
                with contextlib.suppress(Died):  # counted, and the next call starts another
                    self._share()
        return self._arena

    def call(self, request: str, **arguments: Any) -> Reply:
        """Ask the solution's process for one thing.

        Returns its reply, of which `verdict` and `reason` are set where it failed.
        Raises Died where it crashed or passed its deadline; the next call starts another, until
        it has died `lives` times.
        """
        if len(self._deaths) >= self.lives:
            last = self._deaths[-1]
            raise Died(last.verdict, f"not run again after {self.lives} such ends: {last.reason}")
        if self._socket is None:
            self._start()
        if self._loaded.get("verdict"):
            return self._loaded
        if self._arena:
            self._arena.settle()
        return self._ask({"request": request, **arguments})

    def _start(self) -> None:
        self._pid, self._socket = self._server.fork()
        if self._arena:
            self._share()
        self._loaded = self._ask(
            {"request": "load", "path": str(self.solution.path), "op": self.solution.op}
        )

    def _share(self) -> None:
        assert self._arena
        fds = [] if self._arena.fd is None else [self._arena.fd]
        self._ask({"request": "arena", "ticket": self._arena.ticket()}, fds)

    def _ask(self, message: Reply, fds: list[int] | None = None) -> Reply:
        assert self._socket
        try:
            self._number += 1
            line = json.dumps({"number": self._number, **message}).encode() + b"\n"
            sent = socket.send_fds(self._socket, [line], fds or [])
            self._socket.sendall(line[sent:])
            reply: Reply = json.loads(self._receive())
            if not isinstance(reply, dict) or reply.pop("number", None) != self._number:
                raise ValueError("it answers nothing that was asked")
        except TimeoutError:
            raise self._died("TIMEOUT", f"no answer within {self.deadline:g} s") from None
        except (OSError, EOFError):
            raise self._died("CRASHED", "") from None
        except (ValueError, RecursionError) as error:
            raise self._died("CRASHED", f"the process wrote what is no reply: {error}") from None
        if "reason" in reply:
            reply["reason"] = printable(str(reply["reason"]))
        return reply

    def _receive(self) -> bytes:
        assert self._socket
        end = time.monotonic() + self.deadline
        received = bytearray()
        while not received.endswith(b"\n"):
            self._socket.settimeout(max(end - time.monotonic(), 0.001))
            chunk = self._socket.recv(1 << 20)
            if not chunk:
                raise EOFError
            received += chunk
            if len(received) > LARGEST_REPLY:
                raise ValueError("it never ended")
        return bytes(received)

    def _died(self, verdict: str, reason: str) -> Died:
        code = self._stop()
        death = Died(verdict, reason or f"the process ended by {_how(code)}")
        self._deaths.append(death)
        return death

    def renew(self) -> None:
        """End the process, whatever state it is in; the next call starts another."""
        self._stop()

    def _stop(self) -> int:
        if self._socket is None:
            return 0
        self._socket.close()
        self._socket = None
        return self._server.reap(self._pid)

    def close(self) -> None:
        self._stop()
        if self._arena:
            self._arena.close()
            self._arena = None


def printable(text: str) -> str:
    """Without what a terminal or a file would choke on: a solution chose the text."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def _how(code: int) -> str:
    return signal.Signals(-code).name if code < 0 else f"exit({code})"


def _python_path() -> list[str]:
    return [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
