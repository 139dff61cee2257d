"""The socket to one solution's process: a line of JSON out, a line of JSON back."""

from __future__ import annotations

import json
import os
import secrets
import socket
import time
from collections.abc import Sequence

from common.wire import Reply

LARGEST_REPLY = 4 << 20
"""Bytes of one reply."""
LARGEST_MEMORY = 16 << 30
"""Resident bytes of one process. CUDA reserves address space, so a limit on that would not do."""
POLL = 0.25
"""Seconds between two checks of the process's memory while its reply is awaited."""


class Channel:
    """The harness's end of the socket to a process; a reply is not trusted."""

    def __init__(self, connection: socket.socket, pid: int) -> None:
        """Take over the connection to the process with this id."""
        self._connection, self._pid = connection, pid

    def ask(self, request: Reply, deadline: float, fds: Sequence[int] = ()) -> Reply:
        """Send a request, with open files if any, and return the reply within `deadline` seconds.

        Each request carries a fresh token that its reply must repeat, so that a line which the
        solution writes to the socket by itself is not taken for a reply.

        Raises:
            TimeoutError: No complete reply came in time, or the process did not read the request.
            OSError, EOFError: The process closed the socket.
            MemoryError: The process held more than LARGEST_MEMORY meanwhile.
            ValueError: The process wrote something other than the reply to this request.
        """
        token = secrets.token_hex(8)
        self._send({"token": token, **request}, deadline, fds)
        try:
            reply = json.loads(self._receive(deadline))
        except RecursionError as error:
            raise ValueError(str(error)) from None
        if not isinstance(reply, dict) or reply.pop("token", None) != token:
            raise ValueError("it answers nothing that was asked")
        return reply

    def close(self) -> None:
        """Close this end of the socket."""
        self._connection.close()

    def _send(self, message: Reply, deadline: float, fds: Sequence[int]) -> None:
        self._connection.settimeout(deadline)
        line = json.dumps(message).encode() + b"\n"
        sent = socket.send_fds(self._connection, [line], fds)
        self._connection.sendall(line[sent:])

    def _receive(self, deadline: float) -> bytes:
        end = time.monotonic() + deadline
        received = bytearray()
        while not received.endswith(b"\n"):
            self._connection.settimeout(max(min(end - time.monotonic(), POLL), 0.001))
            try:
                chunk = self._connection.recv(1 << 20)
            except TimeoutError:
                if time.monotonic() >= end:
                    raise
                self._check_memory()
                continue
            if not chunk:
                raise EOFError
            received += chunk
            if len(received) > LARGEST_REPLY:
                raise ValueError("it never ended")
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
