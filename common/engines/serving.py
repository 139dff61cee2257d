"""A station as a process: `python -m common.engines.serving FD`, started by its driver.

It speaks over the socket with that descriptor, lines of JSON in both directions: the job first,
then units. An empty line says that work goes on. It ends when its driver does.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
import traceback
from queue import SimpleQueue
from socket import socket

from common.engines.units import Event, Failed, Job, Unit, decode_job, decode_unit, encode
from common.errors import UserError
from common.grading import worker
from common.importing import NEEDED, require
from common.solutions import package_of

BUSY = 3
"""The exit code of a station whose driver has ended while a unit was under way."""
PULSE = 10.0
"""Seconds between two empty lines, at least."""


class _Driver:
    """The other end of the socket, read by a thread of its own."""

    def __init__(self, control: socket) -> None:
        """Read nothing yet."""
        self._control, self._lines = control, control.makefile("rb")
        self._units: SimpleQueue[bytes] = SimpleQueue()
        self._told, self._telling = 0.0, threading.Lock()
        if not (line := self._lines.readline()):
            os._exit(BUSY)  # the driver was interrupted before it had told the job
        self.job = decode_job(line)
        self.busy = True
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        """Pass units on; at the end, end what is under way: nobody waits for it."""
        with contextlib.suppress(OSError):  # the driver was killed amid an answer
            for line in self._lines:
                self._units.put(line)
        if self.busy:
            os._exit(BUSY)  # the fork servers end with their sockets
        self._units.put(b"")

    def next(self) -> Unit | None:
        """Return the next unit, None at the end."""
        self.busy = False
        line = self._units.get()
        self.busy = True
        return decode_unit(line) if line else None

    def tell(self, event: Event) -> None:
        """Send an event."""
        self._send(encode(event))

    def beat(self) -> None:
        """Say that work goes on, unless something was said just now; any thread may call it."""
        if time.monotonic() - self._told > PULSE:
            with contextlib.suppress(OSError):  # `_read` ends this process too
                self._send(b"\n")

    def _send(self, line: bytes) -> None:
        with self._telling:
            self._told = time.monotonic()
            self._control.sendall(line)


def serve(driver: _Driver) -> None:
    """Answer units until the driver has no more.

    Raises:
        ModuleNotFoundError: A package of the harness or of a peer is not installed.
    """
    require(NEEDED)
    require(_peers(driver.job))
    worker.LISTENERS.append(driver.beat)
    from common.engines.station import Station  # for seconds, in which the driver may end

    with Station(driver.job) as station:
        driver.tell(station.ready())
        while unit := driver.next():
            answers = station.crashed(unit) if unit.crashed else station.run([unit])
            for answer in answers:
                driver.tell(answer)
            driver.tell(station.finished())
        driver.busy = False


def _peers(job: Job) -> list[str]:
    """Return the packages of the job's peers."""
    return sorted({package_of(each.handle) for each in job.solutions if each.peer})


def main(descriptor: int) -> None:
    """Serve the driver at the other end of a socket; a failure of the harness is told to it."""
    sys.stdout = sys.stderr
    driver = _Driver(socket(fileno=descriptor))
    try:
        serve(driver)
    except BrokenPipeError:
        os._exit(BUSY)
    except UserError as error:
        driver.tell(Failed(str(error)))
    except ModuleNotFoundError as error:
        driver.tell(Failed(f"it lacks the package {error.name}: install it there"))
    except Exception as error:
        driver.tell(Failed(f"{type(error).__name__}: {error}", traceback.format_exc()))


if __name__ == "__main__":
    main(int(sys.argv[1]))
