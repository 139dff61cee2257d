"""The socket to one solution's process: a line of JSON out, a line of JSON back."""

from __future__ import annotations

import ctypes
import json
import os
import secrets
import socket
import time
from collections.abc import Callable, Sequence

from common.wire import Reply

_LIBC = ctypes.CDLL(None)
LARGEST_REPLY = 4 << 20
"""Bytes of one reply."""
LARGEST_MEMORY = 16 << 30
"""Resident bytes of one process. CUDA reserves address space, so a limit on that would not do."""
LONGEST = 120.0
"""Seconds until a reply is given up, however little of them the process has worked; twice its
deadline where that is more."""
EXITING = 0x4
"""The flag of a process at its end, PF_EXITING of Linux's `sched.h`."""
LONGEST_END = 0.2
"""Seconds in which a process that closed its socket must reach its end, or is ended."""
POLL = 0.25
"""Seconds between two checks of the process's memory and work while its reply is awaited."""
LISTENERS: list[Callable[[], object]] = []
"""Called whenever a request has ended, of any process and with or without a reply: work goes on."""


class _TooMuchWork(Exception):
    """The process used up its processor time."""


class Channel:
    """The harness's end of the socket to a process; a reply is not trusted."""

    def __init__(self, connection: socket.socket, pid: int) -> None:
        """Take over the connection to the process with this id."""
        self._connection, self._pid = connection, pid

    def ask(self, request: Reply, deadline: float, fds: Sequence[int] = ()) -> Reply:
        """Send a request, with open files if any, and return the reply.

        The process may work `deadline` seconds on it, both by the wall clock and by its own
        processor time. In the latter neither a compiler that it waits for nor the machine's other
        work counts, but every thread does: eight busy threads use eight seconds in one. After
        LONGEST seconds, or twice the deadline, it is given up in any case.

        Each request carries a fresh token that its reply must repeat, so that a line which the
        solution writes to the socket by itself is not taken for a reply.

        Raises:
            TimeoutError: No complete reply came in time, or the process did not read the request;
                with the time in words.
            OSError, EOFError: The process closed the socket.
            MemoryError: The process held more than LARGEST_MEMORY meanwhile.
            ValueError: The process wrote something other than the reply to this request.
        """
        token, longest = secrets.token_hex(8), max(LONGEST, 2 * deadline)
        worked = processor_time(self._pid)
        try:
            self._send({"token": token, **request}, fds, longest)
            reply = json.loads(self._receive(worked, deadline, longest))
        except _TooMuchWork:
            raise TimeoutError(f"no answer within {deadline:g} s of its own work") from None
        except TimeoutError:
            raise TimeoutError(f"no answer within {longest:g} s") from None
        except RecursionError as error:
            raise ValueError(str(error)) from None
        finally:
            for listener in LISTENERS:
                listener()
        if not isinstance(reply, dict) or reply.pop("token", None) != token:
            raise ValueError("it lacks the token of the request")
        return reply

    def close(self) -> None:
        """Close this end of the socket."""
        self._connection.close()

    def _send(self, message: Reply, fds: Sequence[int], longest: float) -> None:
        self._connection.settimeout(longest)
        line = json.dumps(message).encode() + b"\n"
        sent = socket.send_fds(self._connection, [line], fds)
        if rest := line[sent:]:  # sending nothing fails where the process has answered and ended
            self._connection.sendall(rest)

    def _receive(self, worked: float, deadline: float, longest: float) -> bytes:
        start = time.monotonic()
        received = bytearray()
        self._connection.settimeout(POLL)
        while not received.endswith(b"\n"):
            waited = time.monotonic() - start
            if waited >= longest:  # also where it writes a byte now and then
                raise TimeoutError
            try:
                chunk = self._connection.recv(1 << 20)
            except TimeoutError:
                self._check_memory()
                if min(waited, processor_time(self._pid) - worked) > deadline:
                    raise _TooMuchWork from None
                continue
            if not chunk:
                raise EOFError
            received += chunk
            if len(received) > LARGEST_REPLY:
                raise ValueError(f"more than {LARGEST_REPLY >> 20} MiB without an end")
        return bytes(received)

    def _check_memory(self) -> None:
        if (held := resident(self._pid)) > LARGEST_MEMORY:
            raise MemoryError(f"it held {held >> 20} MiB, {LARGEST_MEMORY >> 20} are allowed")


def resident(pid: int) -> int:
    """Return the bytes of memory that a process holds, without those it shares with others."""
    try:
        with open(f"/proc/{pid}/statm") as statm:
            _, pages, shared, *_ = map(int, statm.read().split())
    except OSError:
        return 0
    return (pages - shared) * os.sysconf("SC_PAGE_SIZE")


def processor_time(pid: int) -> float:
    """Return the seconds that the threads of a process have run, without its children's.

    0 if it has ended.
    """
    clock = ctypes.c_int()
    if _LIBC.clock_getcpuclockid(pid, ctypes.byref(clock)):
        return 0.0
    try:
        return time.clock_gettime(clock.value)
    except OSError:
        return 0.0


def ends_by_itself(pid: int) -> bool:
    """Return whether a process whose socket is closed is at its end or past it, whoever ended it.

    Linux closes a socket once the process is at its end; of other kernels that is not known.
    """
    start = time.monotonic()
    while not (ending := _is_ending(pid)) and time.monotonic() - start < LONGEST_END:
        time.sleep(LONGEST_END / 10)
    return ending


def _is_ending(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as stat:
            fields = stat.read().rpartition(")")[2].split()
    except OSError:
        return True
    return fields[0] in "ZX" or bool(int(fields[6]) & EXITING)
