"""The harness's side of one solution's process: requests, deadlines, crashes and restarts.

A fork server imports torch and triton once, without using them. Each worker's process is forked
from it and answers each request with one reply. The process's side is `common/sandbox/`.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import signal
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec

from common import wire
from common.arena import Arena, MappingCounter, reclaim
from common.errors import Kind, ServerEnded, UserError, kind_of
from common.grading.fork_server import ForkServer
from common.printable import printable
from common.processes import processor_time
from common.solutions import Solution
from common.source import Place
from common.verdicts import Failure
from common.wire import Reply, Request

DEADLINE = {"cpu": 20.0, "cuda": 120.0}
"""The seconds of work in which a process must reply: the interpreter needs a few seconds for a
case, and the first call on a GPU compiles."""
LONGEST = 120.0
"""The seconds of wall-clock time in which a process must reply, even if it has hardly worked; twice
its deadline if that is longer."""
POLL = 0.25
"""The seconds between two checks of the process's work while the harness waits for a reply."""
LARGEST_REPLY = 4 << 20
"""The most bytes of one reply."""
LATE = 5.0
"""The seconds of work, or a quarter of those of waiting, after which `Worker.late` is called."""
STACK_TIME = 1.0
"""The seconds in which a process that timed out must write its stack."""
NO_REPLY = "the process wrote something other than a reply"
"""The reason if a line from the process does not have the form of a reply."""


class Worker:
    """One solution's process, started at the first request and again after each crash."""

    def __init__(
        self, server: ForkServer, solution: Solution, deadline: float | None = None
    ) -> None:
        """Start nothing yet; the deadline is in seconds of work, by default DEADLINE's."""
        self.solution = solution
        self.deadline = deadline or DEADLINE[server.device]
        self.is_isolated, self._server = False, server
        self.late: Callable[[], None] | None = None
        """Called once, and then forgotten, when the process is late; see LATE."""
        self.pid = 0
        """The id of the latest process; 0 before the first."""
        self._server_pid = 0
        """The id of the fork server's process from which it was forked."""
        self._stack = -1
        """The file to which it writes its stack."""
        self._connection: socket.socket | None = None
        self._refusal: Reply | None = None
        """The reply to every request, if the solution is not run again."""
        self._arena: Arena | None = None
        self._counters: list[MappingCounter] = []
        """The mappings that the process still holds of memory that is no longer shared."""
        self.changes = 0
        """The number of starts and ends of the process and of its shared memory."""
        self.ends = 0
        """The number of unexpected ends of the solution's processes."""
        self.cases: list[str] = []
        """The names of the cases of which the current process was asked."""
        self.recurred = 0
        """The number of failed calls that also fail as the first call of a process."""

    def ask(self, request: Request) -> Reply:
        """Return the reply to a request, with `verdict` and `reason` if the solution failed.

        After a crash, the next request starts another process.

        Raises:
            ServerEnded: The fork server ended during the request; see `isolated`.
            UserError: A new process cannot map the harness's memory.
        """
        try:
            if not self._refusal and not self.alive:
                self._start()
            if self._refusal:
                return self._refusal
            if self._arena:
                self._arena.settle()
            return self._exchange(request)
        except Failure as failure:
            return failure.reply

    @contextlib.contextmanager
    def isolated(self) -> Iterator[None]:
        """Blame the solution if the fork server ends, since no other worker runs meanwhile."""
        self.refresh()
        previous, self.is_isolated = self.is_isolated, True
        try:
            yield
        finally:
            self.is_isolated = previous

    @property
    def alive(self) -> bool:
        """Whether the process was alive after the last request."""
        return self._connection is not None

    @property
    def shared(self) -> int:
        """Return the bytes of the memory that is currently shared with the process."""
        return self._arena.nbytes if self._arena else 0

    def arena(self, nbytes: int) -> Arena:
        """Return the memory shared with the process, replaced if it has fewer than `nbytes`."""
        if self._arena is None or self._arena.nbytes < nbytes:
            self.release()
            self._arena = Arena(self._server.device, nbytes)
            self.changes += 1
            if self.alive:
                with contextlib.suppress(Failure):  # the next request starts another process
                    self._share()
        return self._arena

    def release(self) -> None:
        """Free the shared memory and the process's caches, since all workers share the GPU."""
        if not self._arena:
            return
        if self.alive:
            with contextlib.suppress(Failure, ServerEnded):
                if self._exchange(wire.Share(ticket=None)).get("given_back"):
                    self._arena.counters.clear()
        self._counters += self._arena.counters
        self._arena.close()
        self._arena = None
        self.changes += 1

    def refresh(self) -> None:
        """Discard the process if its fork server has ended; the next request starts another."""
        if self.alive and not self._server.runs(self._server_pid):
            self.end_process()

    def end_process(self) -> None:
        """End the process; the next request starts another."""
        with contextlib.suppress(ServerEnded):
            self._stop()

    def close(self) -> None:
        """End the process and free the shared memory."""
        self.end_process()
        self.release()

    @property
    def place(self) -> Place | None:
        """The line of the solution's files that the process runs now; None if it tells none."""
        start = size = os.fstat(self._stack).st_size
        end = time.monotonic() + STACK_TIME
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, wire.STACK)
            while time.monotonic() < end:
                time.sleep(STACK_TIME / 20)
                previous, size = size, os.fstat(self._stack).st_size
                if start < previous == size:
                    break
        stack = os.pread(self._stack, size - start, start).decode(errors="replace")
        folder = str(self.solution.path.parent).encode("ascii", "backslashreplace").decode()
        for path, line in re.findall(r'^  File "(.+)", line (\d+) in', stack, re.MULTILINE):
            if path.startswith(folder + os.sep):  # the innermost frame is first
                return Place(Path(path).name, int(line))
        return None

    def _start(self) -> None:
        self._stack = os.memfd_create("stack")
        try:
            self._server_pid, self.pid, self._connection = self._server.fork(self._stack)
        except ServerEnded:
            os.close(self._stack)
            raise
        self.changes += 1
        if self._arena:
            self._share_first()
        path, op = str(self.solution.path), self.solution.op
        loaded = self._exchange(wire.Load(path=path, op=op))
        if loaded.get("verdict"):
            self._refuse(loaded)

    def _refuse(self, reply: Reply) -> None:
        """End the process, and answer every request with this reply from now on."""
        self.end_process()
        self._refusal = reply

    def _share(self) -> Reply:
        assert self._arena
        return self._exchange(wire.Share(ticket=self._arena.ticket()), self._arena.fds)

    def _share_first(self) -> None:
        """Share the memory with a new process, in which no solution has run that could be at fault.

        Raises:
            Failure: The process lacks GPU memory, got no context beside other processes, or ended.
            UserError: The machine cannot share memory.
        """
        try:
            reply = self._share()
        except RuntimeError as error:
            if kind_of(error) is Kind.OUT_OF_MEMORY:
                raise
            raise _not_shared(str(error).partition("\n")[0]) from None
        if reply.get("verdict"):
            failure, is_only = Failure.from_reply(reply), self._server.is_only(self.pid)
            if failure.kind is Kind.OUT_OF_MEMORY or (failure.kind is Kind.BUSY and not is_only):
                raise failure
            raise _not_shared(f"a new process could not map the memory: {failure}")

    def _exchange(self, request: Request, fds: Sequence[int] = ()) -> Reply:
        """Send a request to the process; return its reply.

        Raises:
            Failure: No reply came, and the process was killed: CRASHED, TIMEOUT or TAMPERED.
            ServerEnded: No reply came, and the fork server has ended.
        """
        try:
            answer = self._answer(request, fds)
        except TimeoutError as error:
            places = tuple(filter(None, [self.place]))
            reason = ", ".join(map(str, (error, *places)))
            raise self._died("TIMEOUT", reason, places) from None
        except (OSError, EOFError):
            raise self._died("CRASHED") from None
        except ValueError as error:
            raise self._died("TAMPERED", f"{NO_REPLY}: {error}") from None
        reply = answer.reply
        if "reason" in reply:  # a solution may have chosen the text
            reply["reason"] = printable(str(reply["reason"]))
        if answer.ended:  # the process can answer no further request
            self.end_process()
            self.ends += 1
        elif reply.get("verdict") == "TAMPERED":  # later replies are not trusted
            self._refuse(reply)
        return reply

    def _answer(self, request: Request, fds: Sequence[int]) -> wire.Answer:
        """Send a request and file descriptors to the process; return its answer, not trusted yet.

        The answer must repeat the request's token, so that a line that the solution itself writes
        to the socket is not taken for an answer.

        Raises:
            TimeoutError: See `_line`; or the process did not read the request.
            OSError, EOFError: The process closed the socket.
            ValueError: The process wrote something other than the answer to this request.
        """
        request.token = secrets.token_hex(8)
        try:
            answer = msgspec.json.decode(self._line(request, fds), type=wire.Answer)
        except (msgspec.DecodeError, RecursionError) as error:
            raise ValueError(str(error)) from None
        if answer.token != request.token:
            raise ValueError("the answer lacks the token of the request")
        return answer

    def _line(self, request: Request, fds: Sequence[int]) -> bytearray:
        """Send a request; return the line that the process writes.

        The process times out once both the wall-clock time and its own processor time exceed the
        deadline. Processor time excludes a compiler that the process waits for and other work on
        the machine, but includes every thread: eight busy threads use eight seconds in one. In any
        case the process times out after LONGEST seconds, or twice the deadline if that is longer.

        Raises:
            TimeoutError: No complete line came in time, with the time in words.
        """
        connection = self._connection
        assert connection
        start, worked_before = time.monotonic(), processor_time(self.pid)
        longest = max(LONGEST, 2 * self.deadline)
        received, in_time = bytearray(), TimeoutError(f"no answer within {longest:g} s")
        connection.settimeout(longest)
        try:
            wire.send(connection, request, fds)
        except TimeoutError:
            raise in_time from None
        connection.settimeout(POLL)
        while not received.endswith(b"\n"):
            waited = time.monotonic() - start
            if waited >= longest:  # for every chunk: the process may write single bytes slowly
                raise in_time
            try:
                chunk = connection.recv(1 << 20)
            except TimeoutError:
                worked = min(waited, processor_time(self.pid) - worked_before)
                if worked > self.deadline:
                    time_limit = f"{self.deadline:g} s of its own work"
                    raise TimeoutError(f"no answer within {time_limit}") from None
                if self.late and max(worked, waited / 4) > LATE:
                    late, self.late = self.late, None
                    late()
                continue
            if not chunk:
                raise EOFError
            received += chunk
            if len(received) > LARGEST_REPLY:
                raise ValueError(f"more than {LARGEST_REPLY >> 20} MiB without a line end")
        return received

    def _died(self, verdict: str, reason: str = "", places: tuple[Place, ...] = ()) -> Exception:
        """End a process that gave no answer; return the exception with the cause."""
        try:
            code = self._stop()
        except ServerEnded as ended:
            if not self.is_isolated:
                return ended
            crash = Failure("TAMPERED", "it ended the fork server, which other solutions need too")
            self._refuse(crash.reply)
            return crash
        self.ends += 1
        ending = signal.Signals(-code).name if code < 0 else f"exit({code})"
        kind = Kind.KILLED if code == -signal.SIGKILL and not reason else Kind.NONE
        return Failure(verdict, reason or f"the process ended by {ending}", kind, places)

    def _stop(self) -> int:
        """End the process; return its exit code, or the negated number of a signal."""
        if self._connection is None:
            return 0
        self._connection.close()
        os.close(self._stack)
        self._connection, self.cases = None, []
        try:
            return self._server.reap(self._server_pid, self.pid)
        finally:
            self.changes += 1
            reclaim(self._counters)  # the mappings of the process that has ended
            if self._arena:
                reclaim(self._arena.counters)


def _not_shared(reason: str) -> UserError:
    return UserError(
        f"this machine cannot share GPU memory between processes (CUDA IPC: {reason}):"
        " docs/machines.md has the remedies; --device cpu grades without the GPU"
    )
