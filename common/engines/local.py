"""The engine of this machine: a station in this process, or a process for each of its GPUs."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from common.engines.engine import Engine, Fleet, Found, Lost
from common.engines.station import Station
from common.engines.units import (
    WHOLE,
    Event,
    Failed,
    Finished,
    Job,
    Ready,
    Sizes,
    Unit,
    decode_event,
    encode,
)
from common.errors import UserError
from common.paths import ROOT

VISIBLE = "CUDA_VISIBLE_DEVICES"
LONGEST_END = 20.0
"""Seconds in which a station must end by itself once its socket is closed."""


class Here:
    """One station in this process, which takes each op whole; see `Engine`.

    Without a GPU its threads fill the cores.
    """

    def __init__(self, job: Job) -> None:
        """Start nothing yet."""
        self.job = job
        self.kinds: dict[str, list[Ready]] = {}
        self.memory: dict[str, dict[str, int]] = {}
        self.notes: list[str] = []
        self._running = False

    def __enter__(self) -> Here:
        """Start the station."""
        self._station = Station(self.job)
        ready = self._station.ready()
        self.kinds, self.memory = {ready.place.kind: [ready]}, {ready.place.kind: {}}
        return self

    def __exit__(self, *_: object) -> None:
        """End its workers."""
        self._station.__exit__()

    def sizes(self, kind: str) -> Sizes:
        """Return the sizes of the units: an op is one."""
        return WHOLE

    @property
    def busy(self) -> tuple[int, int]:
        """The stations that are at work, and all: one."""
        return int(self._running), 1

    def run(self, units: Mapping[str, Sequence[Unit]]) -> Iterator[tuple[str, Found]]:
        """Yield each answer as it comes, with the kind of device: no other station repeats any."""
        ((kind, mine),) = units.items()
        self._running = True
        for answer in self._station.run(mine):
            yield kind, [answer]
        self.memory[kind] = self._station.finished().memory
        self._running = False


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
        command = [sys.executable, "-m", "common.engines.serving", str(theirs.fileno())]
        with theirs:
            self._process = subprocess.Popen(
                command,
                cwd=self._root,
                env=os.environ | self._environment,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C is for the driver, which then ends the stations
            )
        if self._closed:  # meanwhile
            self._end()
        elif self._cores:
            os.sched_setaffinity(self._process.pid, self._cores)
        self._lines = self._control.makefile("rb")
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

    def _send(self, message: Job | Unit) -> None:
        with contextlib.suppress(OSError):  # the next event says that it has ended
            self._control.sendall(encode(message))

    def _event(self) -> Event:
        try:
            line = self._lines.readline()
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
            self._process.kill()
            self._process.wait()
        self._control.close()


def engine(job: Job, gpus: Sequence[str], stations: int = 0) -> Engine:
    """Return the engine of this machine.

    Args:
        job: The job.
        gpus: The GPUs, as CUDA_VISIBLE_DEVICES names them; a process each where there are several.
        stations: Without a GPU, the number of processes, which share the cores; 0 for none but
            this one.
    """
    if len(gpus) < 2 and not stations:  # a process more would import torch once more
        return Here(job)
    seen = [{VISIBLE: gpu} for gpu in gpus] or [{VISIBLE: ""}] * stations
    names = [f"GPU {gpu}" for gpu in gpus] or [f"station {i}" for i in range(stations)]
    cores = share_cores(sorted(os.sched_getaffinity(0)), len(seen))
    return Fleet(
        job,
        [
            Process(name, job, environment=each, cores=own)
            for name, each, own in zip(names, seen, cores, strict=True)
        ],
    )


def share_cores(cores: Sequence[int], stations: int) -> list[Sequence[int]]:
    """Return the cores of each station: neighbours, of which no other station has any.

    A process that compiles then takes no core from another station's clock. Where there are fewer
    than two for each, all share all.
    """
    each = len(cores) // stations
    if each < 2:
        return [cores] * stations
    return [cores[i * each : (i + 1) * each] for i in range(stations)]
