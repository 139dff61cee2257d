"""The harness's hold on a solution's own process: deadline, crash, restart.

A fork server imports torch and triton once and runs neither; each worker is forked from it and
talks over a socket in lines of JSON, one reply to each request. See `inside.py` for the other side.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import socket
import time
from collections.abc import Iterator
from typing import Any

from common.arena import Arena
from common.grading.fork_server import ForkServer, ServerEnded
from common.solutions import Solution
from common.wire import Reply

DEADLINE = {"cpu": 20.0, "cuda": 120.0}
"""Seconds for one answer: a case takes the interpreter a few, and a GPU's first call compiles."""
LIVES = 2
LARGEST_REPLY = 4 << 20
LARGEST_MEMORY = 16 << 30
"""Resident bytes of one worker. CUDA reserves address space, so that no limit on that will do."""
AGAIN_EVERY = 4
"""Cases, of which one asks for more than the two answers; see exchange.AGAIN."""
POLL = 0.25


class Died(Exception):
    """The worker did not answer. `verdict` is CRASHED or TIMEOUT."""

    def __init__(self, verdict: str, reason: str) -> None:
        super().__init__(reason)
        self.verdict, self.reason = verdict, reason


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
        self._alone = False
        self._turn = secrets.randbelow(AGAIN_EVERY)
        self._server = server
        self._pids = (0, 0)
        """Of the fork server that started it, and its own."""
        self._socket: socket.socket | None = None
        self._arena: Arena | None = None
        self._deaths: list[Died] = []
        self._loaded: Reply = {}

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Nobody else is asked meanwhile: if the fork server ends, this solution has ended it."""
        if self._socket and not self._server.runs(self._pids[0]):  # somebody ended it before
            self._socket.close()
            self._socket = None
        self._alone = True
        try:
            yield
        finally:
            self._alone = False

    def ask_again(self) -> bool:
        """Is it this case's turn to be asked for a further answer? Nobody can foresee it."""
        self._turn += 1
        return self._turn % AGAIN_EVERY == 0

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

    def release(self) -> None:
        """Give the shared memory back, and have the process let go of what it keeps: a GPU's memory
        serves all of them."""
        if self._arena is None:
            return
        if self._socket:
            with contextlib.suppress(Died, ServerEnded):
                self._ask({"request": "arena", "ticket": None})
        self._arena.close()
        self._arena = None

    def call(self, request: str, **arguments: Any) -> Reply:
        """Ask the solution's process for one thing.

        Returns its reply, of which `verdict` and `reason` are set where it failed.
        Raises Died where it crashed or passed its deadline; the next call starts another, until
        it has died `lives` times.
        """
        if len(self._deaths) >= self.lives:
            last = self._deaths[-1]
            raise Died(last.verdict, f"not run again after {self.lives} such ends: {last.reason}")
        if self._socket is None and not self._loaded.get("verdict"):
            self._start()
        if self._loaded.get("verdict"):
            return self._loaded
        if self._arena:
            self._arena.settle()
        return self._ask({"request": request, **arguments})

    def _start(self) -> None:
        server, pid, self._socket = self._server.fork()
        self._pids = (server, pid)
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
        token = secrets.token_hex(8)
        try:
            self._socket.settimeout(self.deadline)
            line = json.dumps({"token": token, **message}).encode() + b"\n"
            sent = socket.send_fds(self._socket, [line], fds or [])
            self._socket.sendall(line[sent:])
            reply: Reply = json.loads(self._receive())
            if not isinstance(reply, dict) or reply.pop("token", None) != token:
                raise ValueError("it answers nothing that was asked")
        except TimeoutError:
            raise self._died("TIMEOUT", f"no answer within {self.deadline:g} s") from None
        except (OSError, EOFError):
            raise self._died("CRASHED", "") from None
        except MemoryError as error:
            raise self._died("CRASHED", str(error)) from None
        except (ValueError, RecursionError) as error:
            raise self._died("TAMPERED", f"the process wrote what is no reply: {error}") from None
        if "reason" in reply:
            reply["reason"] = printable(str(reply["reason"]))
        if reply.pop("ended", False):  # it answered, and is of no further use
            with contextlib.suppress(ServerEnded):
                self._stop()
            self._deaths.append(Died(str(reply.get("verdict")), str(reply.get("reason"))))
        if reply.get("verdict") == "TAMPERED":  # nothing that this process says counts from now on
            with contextlib.suppress(ServerEnded):
                self._stop()
            self._loaded = reply
        return reply

    def _receive(self) -> bytes:
        assert self._socket
        end = time.monotonic() + self.deadline
        received = bytearray()
        while not received.endswith(b"\n"):
            self._socket.settimeout(max(min(end - time.monotonic(), POLL), 0.001))
            try:
                chunk = self._socket.recv(1 << 20)
            except TimeoutError:
                if time.monotonic() < end:
                    self._hold_memory()
                    continue
                raise
            if not chunk:
                raise EOFError
            received += chunk
            if len(received) > LARGEST_REPLY:
                raise ValueError("it never ended")
        return bytes(received)

    def _hold_memory(self) -> None:
        if (held := resident(self._pids[1])) > LARGEST_MEMORY:
            raise MemoryError(f"it held {held >> 20} MiB, {LARGEST_MEMORY >> 20} are allowed")

    def _died(self, verdict: str, reason: str) -> Exception:
        try:
            code = self._stop()
        except ServerEnded as ended:
            if not self._alone:
                return ended
            death = Died("TAMPERED", "it ended the fork server, which other solutions need too")
            self._loaded = {"verdict": death.verdict, "reason": death.reason}
            return death
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
        return self._server.reap(*self._pids)

    def close(self) -> None:
        with contextlib.suppress(ServerEnded):
            self._stop()
        if self._arena:
            self._arena.close()
            self._arena = None


def resident(pid: int) -> int:
    """Bytes of memory that the process holds, what it shares with others apart."""
    try:
        with open(f"/proc/{pid}/statm") as statm:
            _, pages, shared, *_ = map(int, statm.read().split())
    except OSError:
        return 0
    return (pages - shared) * os.sysconf("SC_PAGE_SIZE")


def printable(text: str) -> str:
    """Without what a terminal or a file would choke on: a solution chose the text."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def _how(code: int) -> str:
    return signal.Signals(-code).name if code < 0 else f"exit({code})"
