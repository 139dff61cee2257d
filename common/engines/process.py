"""A station in a process of its own, which its driver speaks to in lines of JSON."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from common.engines.engine import Lost
from common.engines.units import Event, Failed, Finished, Job, Ready, Unit, decode_event, encode
from common.errors import UserError
from common.paths import ROOT

LONGEST_END = 20.0
"""Seconds in which a station must end by itself once its socket is closed."""
LONGEST_SILENCE = 600.0
"""Seconds without a line after which a station that starts or works is lost. It says one after
requests to a solution's process, which end within eight minutes (see `grading/worker.py`)."""


class Process:
    """The driver's hold on a station that is a process of this machine."""

    def __init__(
        self,
        name: str,
        job: Job,
        root: Path = ROOT,
        environment: Mapping[str, str] | None = None,
        cores: Sequence[int] = (),
    ) -> None:
        """Start nothing yet.

        Args:
            name: The station's name.
            job: The job.
            root: The copy of the repository that the station runs in.
            environment: The variables in which its environment differs from this one's.
            cores: The cores that it may use, by default all.
        """
        self.name, self._job, self._root = name, job, root
        self._environment, self._cores = dict(environment or {}), cores
        self._process: subprocess.Popen[bytes] | None = None
        self._closed = False

    def start(self) -> Ready:
        """Start the process, and return its device.

        Raises:
            Lost: It does not start.
            UserError: The user can mend the reason.
        """
        self._end()
        self._control, theirs = socket.socketpair()
        self._control.settimeout(LONGEST_SILENCE)
        self._lines = self._control.makefile("rb")
        with theirs:
            self._process = self._serving(theirs.fileno())
        if self._closed:  # meanwhile
            self._end()
        elif self._cores:
            os.sched_setaffinity(self._process.pid, self._cores)
        self._send(self._job)
        ready = self._event()
        if isinstance(ready, Failed):
            raise UserError(ready.reason) if not ready.trace else RuntimeError(ready.trace)
        assert isinstance(ready, Ready)
        return ready

    def run(self, unit: Unit) -> Iterator[Event]:
        """Yield the events of a unit; see `engine.Station`."""
        self._send(unit)
        while True:
            event = self._event()
            yield event
            if isinstance(event, Finished | Failed):
                return

    def close(self) -> None:
        """End the process; any thread may call it."""
        self._closed = True
        self._end()

    def _serving(self, descriptor: int) -> subprocess.Popen[bytes]:
        """Return the process, which takes over the socket with this descriptor."""
        return subprocess.Popen(
            [sys.executable, "-m", "common.engines.serving", str(descriptor)],
            cwd=self._root,
            env=os.environ | self._environment,
            pass_fds=[descriptor],
            stdin=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for the driver, which then ends the stations
        )

    def _send(self, message: Job | Unit) -> None:
        with contextlib.suppress(OSError):  # the next event says that it has ended
            self._control.sendall(encode(message))

    def _event(self) -> Event:
        try:
            while (line := self._lines.readline()) == b"\n":  # work goes on
                pass
        except TimeoutError:
            self._kill()
            raise Lost(f"it gave no sign of life for {LONGEST_SILENCE:g} s") from None
        except (OSError, ValueError):  # closed meanwhile
            line = b""
        if not line.endswith(b"\n"):
            raise Lost(self._ending())
        return decode_event(line)

    def _ending(self) -> str:
        assert self._process
        try:
            code = self._process.wait(LONGEST_END)
        except subprocess.TimeoutExpired:
            return "its process closed its socket"
        return f"its process ended by signal {-code}" if code < 0 else f"exit code {code}"

    def _end(self) -> None:
        """Close the socket, on which the process ends by itself, and wait for that."""
        if self._process is None:
            return
        with contextlib.suppress(OSError):
            self._control.shutdown(socket.SHUT_RDWR)
        try:
            self._process.wait(LONGEST_END)
        except subprocess.TimeoutExpired:
            self._kill()
        self._control.close()

    def _kill(self) -> None:
        """Kill the process, which a broken driver of its GPU may keep from ending."""
        assert self._process
        self._process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(LONGEST_END)


def share_cores(cores: Sequence[int], stations: int) -> list[Sequence[int]]:
    """Return the cores of each station: neighbours, of which no other station has any.

    A process that compiles then takes no core from another station's clock. Where there are fewer
    than two for each, all share all.
    """
    each = len(cores) // stations
    if each < 2:
        return [cores] * stations
    return [cores[i * each : (i + 1) * each] for i in range(stations)]
