"""The engine of this machine: a station in this process, or a process for each of its GPUs."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence

from common.engines.engine import Answers, Engine, Fleet
from common.engines.process import Process, share_cores
from common.engines.station import Station
from common.engines.units import WHOLE, Job, Ready, Sizes, Unit
from common.processes import VISIBLE


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

    def run(self, units: Mapping[str, Sequence[Unit]]) -> Iterator[tuple[str, Answers]]:
        """Yield each answer as it comes, with the kind of device: no other station repeats any."""
        ((kind, mine),) = units.items()
        self._running = True
        for answer in self._station.run(mine):
            yield kind, [answer]
        self.memory[kind] = self._station.finished().memory
        self._running = False


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
