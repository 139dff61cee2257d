"""The harness's hold on one solution's process: requests, deadlines, deaths and new starts.

A fork server imports torch and triton once and runs neither; each worker's process is forked from
it and answers each request with one reply. The other side is `common/sandbox/`.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator, Sequence
from typing import Any

from common.arena import Arena, Lent, reclaim
from common.errors import Kind, ServerEnded
from common.grading.channel import Channel, ends_by_itself
from common.grading.fork_server import ForkServer
from common.printable import printable
from common.solutions import Solution
from common.verdicts import Failure
from common.wire import Reply

DEADLINE = {"cpu": 20.0, "cuda": 120.0}
"""Seconds that a process may work on one reply (see `Channel.ask`): a case takes the interpreter a
few, and a GPU's first call compiles."""
NO_REPLY = "the process wrote something other than a reply"
"""The reason where a line from the process has not the form of one."""


class Died(Failure):
    """The process did not reply and was ended; `verdict` is CRASHED, TIMEOUT or TAMPERED."""


class Worker:
    """One solution's process, started at the first request and again after each death."""

    def __init__(
        self,
        server: ForkServer,
        solution: Solution,
        deadline: float | None = None,
        memory: int | None = None,
    ) -> None:
        """Start nothing yet.

        Args:
            server: The fork server.
            solution: The solution.
            deadline: The seconds of work on one reply, DEADLINE by default.
            memory: The bytes of the GPU's memory that the process may take, by default all.
        """
        self.solution = solution
        self.deadline = deadline or DEADLINE[server.device]
        self._alone, self._memory = False, memory
        self._server = server
        self._pids = (0, 0)  # of the fork server, and of the process
        self._channel: Channel | None = None
        self._arena: Arena | None = None
        self._lent: list[Lent] = []
        """Of memory that is no longer shared, the mappings that the process has kept."""
        self.changes = 0
        """Counts the starts and ends of the process and of its shared memory."""
        self.deaths = 0
        """The ends of its processes that the harness did not mean."""
        self.differentiable: set[bool] = set()
        """Whether outputs of the cases so far could be differentiated: {False} if none could."""
        self._light = False
        """Whether the process was forked without torch.compile's modules."""
        self._loaded: Reply = {}
        """The reply to `load`; a verdict in it answers every later request too."""

    def ask(self, request: str, **arguments: Any) -> Reply:
        """Return the reply to a request; a death is a reply with its verdict and reason."""
        try:
            return self.call(request, **arguments)
        except Died as death:
            return death.reply

    def call(self, request: str, **arguments: Any) -> Reply:
        """Return the reply to a request, with `verdict` and `reason` where the solution failed.

        Raises:
            Died: No reply came; the next call starts another process.
            ServerEnded: The fork server ended meanwhile; see `alone`.
        """
        if self._channel is None and not self._loaded.get("verdict"):
            self._start()
        if self._loaded.get("verdict"):
            return self._loaded
        if self._arena:
            self._arena.settle()
        return self._exchange({"request": request, **arguments})

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Blame the fork server's end on this solution, since no other is asked meanwhile."""
        self.refresh()
        before, self._alone = self._alone, True
        try:
            yield
        finally:
            self._alone = before

    @property
    def pid(self) -> int:
        """Return the id of the latest process; 0 before the first."""
        return self._pids[1]

    @property
    def alive(self) -> bool:
        """Whether the process has not ended since the last request."""
        return self._channel is not None

    @property
    def shared(self) -> int:
        """Return the bytes of the memory that is shared with the process now."""
        return self._arena.nbytes if self._arena else 0

    def arena(self, nbytes: int) -> Arena:
        """Return the memory shared with the process, of at least so many bytes."""
        if self._arena is None or self._arena.nbytes < nbytes:
            self.release()
            self._arena = Arena(self._server.device, nbytes)
            self.changes += 1
            if self._channel:
                with contextlib.suppress(Died):  # the next call starts another process
                    self._share()
        return self._arena

    def release(self) -> None:
        """Free the shared memory and the process's caches; all workers share a GPU's memory."""
        if self._arena and self._channel:
            with contextlib.suppress(Died, ServerEnded):
                reply = self._exchange({"request": "arena", "ticket": None})
                if reply.get("given_back"):
                    self._arena.lent.clear()
        if self._arena:
            self._lent += self._arena.lent
            self._arena.close()
            self._arena = None
            self.changes += 1

    def refresh(self) -> None:
        """Forget a process whose fork server has ended; the next call starts another."""
        if self._channel and not self._server.runs(self._pids[0]):
            self._channel.close()
            self._channel = None
            self._reclaim()

    def renew(self) -> None:
        """End the process in whatever state it is; the next call starts another."""
        with contextlib.suppress(ServerEnded):
            self._stop()

    def close(self) -> None:
        """End the process and free the shared memory."""
        with contextlib.suppress(ServerEnded):
            self._stop(at_once=True)
        self.release()

    def _start(self) -> None:
        self._light = self._server.light
        server, pid, connection = self._server.fork()
        self._pids, self._channel = (server, pid), Channel(connection, pid)
        self.changes += 1
        if self._memory:
            self._exchange({"request": "limit", "nbytes": self._memory})
        if self._arena:
            self._share()
        self._loaded = self._exchange(
            {"request": "load", "path": str(self.solution.path), "op": self.solution.op}
        )

    def _share(self) -> None:
        assert self._arena
        self._exchange({"request": "arena", "ticket": self._arena.ticket()}, self._arena.fds)

    def _exchange(self, message: Reply, fds: Sequence[int] = ()) -> Reply:
        assert self._channel
        try:
            reply = self._channel.ask(message, self.deadline, fds)
        except (OSError, EOFError, MemoryError, ValueError) as error:
            raise self._died(*_cause(error)) from None
        if self._light and "lacks" in reply:
            return self._start_again(message["request"])
        if "reason" in reply:  # a solution may have chosen it
            reply["reason"] = printable(str(reply["reason"]))
        ended, tampered = reply.pop("ended", False), reply.get("verdict") == "TAMPERED"
        if ended or tampered:
            with contextlib.suppress(ServerEnded):
                self._stop()
        self.deaths += bool(ended)  # the process can answer nothing more
        if tampered:  # no later reply counts
            self._loaded = reply
        return reply

    def _start_again(self, request: str) -> Reply:
        """Start a process with torch.compile's modules; return the reply to `load`.

        Raises:
            ServerEnded: The request is another one, which needs what the process held.
        """
        self._stop()
        self._server.grow()
        if request != "load":
            raise ServerEnded("torch.compile was first used after the solution was loaded")
        self._start()
        return self._loaded

    def _died(self, verdict: str, reason: str) -> Exception:
        """End the process; return the exception that says why."""
        by_itself = not reason and ends_by_itself(self.pid)  # in a moment the harness ends it
        try:
            code = self._stop()
        except ServerEnded as ended:
            if not self._alone:
                return ended
            death = Died("TAMPERED", "it ended the fork server, which other solutions need too")
            self._loaded = death.reply
            return death
        self.deaths += 1
        if not reason and code == -signal.SIGKILL:
            if by_itself:
                return Died("CRASHED", "the process ended by SIGKILL", Kind.KILLED)
            reason = "the process closed its socket"
        return Died(verdict, reason or f"the process ended by {_ending(code)}")

    def _stop(self, at_once: bool = False) -> int:
        """End the process; return its exit code, or a signal's number negated.

        Args:
            at_once: Whether the code does not matter.
        """
        if self._channel is None:
            return 0
        self._channel.close()
        self._channel = None
        try:
            return self._server.reap(*self._pids, at_once)
        finally:
            self._reclaim()

    def _reclaim(self) -> None:
        """Take back the shared memory that the process, which has ended, had mapped."""
        self.changes += 1
        reclaim(self._lent)
        if self._arena:
            reclaim(self._arena.lent)


def _cause(error: Exception) -> tuple[str, str]:
    """Return the verdict of a request without a reply, and its reason if more is known."""
    match error:
        case TimeoutError():
            return "TIMEOUT", str(error)
        case OSError() | EOFError():
            return "CRASHED", ""
        case MemoryError():
            return "CRASHED", str(error)
        case _:
            return "TAMPERED", f"{NO_REPLY}: {error}"


def _ending(code: int) -> str:
    return signal.Signals(-code).name if code < 0 else f"exit({code})"
