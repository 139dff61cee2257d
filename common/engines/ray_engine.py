"""The engine of a Ray cluster: a station on every GPU, placed by the kind of accelerator.

An actor on each GPU starts a station as a process of its node and passes its events on, as they
come. The project's files travel as Ray's runtime environment.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from common.engines import cluster, node
from common.engines.engine import Fleet, Lost
from common.engines.process import Process, share_cores
from common.engines.units import (
    Event,
    Job,
    Ready,
    Unit,
    decode_event,
    decode_job,
    decode_unit,
    encode,
)
from common.errors import UserError
from common.processes import VISIBLE

LABEL = "accelerator_type:"
"""How Ray's resources begin that name a node's kind of accelerator."""
LONGEST_PLACING = 120.0
"""Seconds in which the cluster places an actor on its GPU; otherwise another job has the GPU."""
LONGEST_INSTALLATION = 1800.0
"""The same where the nodes install the packages first, for which an actor waits too."""


@dataclass(frozen=True)
class Slot:
    """One GPU of one node."""

    node: str
    """Ray's id of the node."""
    name: str
    """Unique in the cluster, for messages."""
    kind: str
    """The kind of accelerator as the cluster labels it; empty where it does not."""
    number: int
    """The slot's place on its node."""
    of: int
    """The number of the node's slots."""


class Relay:
    """The actor: a station's process on this node, and what it says."""

    def start(
        self, job: bytes, name: str, environment: Mapping[str, str], number: int, of: int
    ) -> bytes:
        """Copy the project to where no solution may write, and return the station's first event.

        Here, as Ray tells an error of `__init__` as the actor's death alone.
        """
        root = node.settle(Path.cwd())
        cores = share_cores(sorted(os.sched_getaffinity(0)), of)[number]
        changed = {**environment, "PYTHONDONTWRITEBYTECODE": "1"}  # the copy stays as it was made
        self._station = Process(name, decode_job(job), root, changed, cores)
        return encode(self._station.start())

    def run(self, unit: bytes) -> Iterator[bytes]:
        """Yield the events of a unit."""
        for event in self._station.run(decode_unit(unit)):
            yield encode(event)  # Ray sends to this generator, which `yield from` would pass on


class RayStation:
    """The driver's hold on an actor; see `engine.Station`."""

    def __init__(self, job: Job, slot: Slot, limit: float = LONGEST_PLACING) -> None:
        """Start nothing yet; the actor is to be placed within `limit` seconds."""
        self.name, self._job, self._slot, self._limit = slot.name, job, slot, limit
        self._actor: Any = None
        self._begun: tuple[Any, Any] | None = None

    def begin(self) -> tuple[Any, Any]:
        """Ask for the actor and its station, and wait for neither.

        Returns:
            Ray's references to be waited for: the actor is placed, the station has started.
        """
        self.close()
        hidden = {VISIBLE: ""} if self._job.device == "cpu" else {}
        words = encode(self._job), self.name, hidden, self._slot.number, self._slot.of
        self._actor, self._end = _actor(self._slot).remote(), time.monotonic() + self._limit
        self._begun = self._actor.__ray_ready__.remote(), self._actor.start.remote(*words)
        return self._begun

    def start(self) -> Ready:
        """Wait for the actor and its station, begun here if they are not; see `engine.Station`."""
        placed, started = self._begun or self.begin()
        self._begun = None
        if not cluster.ray().wait([placed], timeout=max(self._end - time.monotonic(), 0))[0]:
            raise Lost(f"its GPU is taken, or no core is free, for {self._limit:.0f} s")
        ready = decode_event(_awaited(started))
        assert isinstance(ready, Ready)
        return ready

    def run(self, unit: Unit) -> Iterator[Event]:
        """Yield the events of a unit; see `engine.Station`."""
        found = self._actor.run.options(num_returns="streaming").remote(encode(unit))
        while True:
            try:
                reference = next(found)
            except StopIteration:
                return
            except cluster.ray().exceptions.RayError as error:
                raise _told(error) from None
            yield decode_event(_awaited(reference))

    def close(self) -> None:
        """End the actor; its station ends with it."""
        if self._actor is not None and cluster.ray().is_initialized():
            cluster.ray().kill(self._actor)
        self._actor = self._begun = None


class RayFleet(Fleet):
    """The stations of a cluster."""

    def __init__(
        self, job: Job, address: str | None, install: bool = False, simulated: bool = False
    ) -> None:
        """Connect to nothing yet.

        Args:
            job: The job.
            address: HOST:PORT of the cluster's head; None for a cluster of this machine alone,
                which only it can reach.
            install: Whether each node installs the packages of the group `run` first.
            simulated: For tests: whether the cluster's GPUs are labels alone, by which stations
                without a GPU are named.

        Raises:
            UserError: The job is for the CPU: its rows would come under a GPU's name.
        """
        if job.device == "cpu" and not simulated:
            raise UserError(
                "--engine ray needs GPUs: leave --device cpu out, or take --engine local"
            )
        super().__init__(job, [])
        self._address, self._install, self._simulated = address, install, simulated

    def __enter__(self) -> RayFleet:
        """Connect, and start a station on each GPU.

        Raises:
            UserError: There is no cluster, no GPU in it, or no station starts.
        """
        try:
            cluster.connect(self._address, node.runtime_environment(self._install))
            self._stations = stations = self._placed(slots_of(cluster.ray().nodes()))
            _wait(stations, self._limit)
            super().__enter__()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *of: object) -> None:
        """End the stations, and leave the cluster."""
        try:
            super().__exit__(*of)
        finally:
            cluster.ray().shutdown()

    @property
    def _limit(self) -> float:
        """The seconds in which an actor is to be placed."""
        return LONGEST_INSTALLATION if self._install else LONGEST_PLACING

    def _placed(self, slots: Sequence[Slot]) -> list[RayStation]:
        """Return a station for each slot, which times eager where there are several."""
        if not slots:
            raise UserError("the Ray cluster has no GPU: take --engine local")
        timed = self.job.command == "bench" and self.job.device == "cuda"
        self.job = msgspec.structs.replace(self.job, pace=timed and len(slots) > 1)
        return [RayStation(self._job_at(slot), slot, self._limit) for slot in slots]

    def _job_at(self, slot: Slot) -> Job:
        return msgspec.structs.replace(self.job, name=slot.kind) if self._simulated else self.job


def slots_of(nodes: Sequence[Mapping[str, Any]]) -> list[Slot]:
    """Return the GPUs of the nodes that are alive, as `ray.nodes()` lists them, taken or not."""
    found = []
    for each in nodes:
        resources, host = each["Resources"], each["NodeManagerHostname"]
        count = int(resources.get("GPU", 0)) if each["Alive"] else 0
        kinds = [name.removeprefix(LABEL) for name in resources if name.startswith(LABEL)]
        for number in range(count):
            name = f"{host} {each['NodeID'][:6]} GPU {number}"
            found.append(Slot(each["NodeID"], name, kinds[0] if kinds else "", number, count))
    return found


def _wait(stations: Sequence[RayStation], limit: float) -> None:
    """Begin the stations, and wait for those that are placed within the limit, in seconds.

    In the main thread, where Ctrl-C ends it: `Fleet.__enter__` joins the threads that it waits in.
    """
    begun = [each.begin() for each in stations]
    wait = cluster.ray().wait
    placed, _ = wait([each for each, _ in begun], num_returns=len(begun), timeout=limit)
    if started := [each for first, each in begun if first in placed]:
        wait(started, num_returns=len(started))


def _actor(slot: Slot) -> Any:
    """Return the actor's class with its place."""
    ray = cluster.ray()
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    place: dict[str, Any] = {"num_cpus": 1, "num_gpus": 1, "max_restarts": 0}
    if slot.kind:
        place["accelerator_type"] = slot.kind
    here = NodeAffinitySchedulingStrategy(slot.node, soft=False)
    return ray.remote(Relay).options(scheduling_strategy=here, **place)


def _awaited(reference: Any) -> bytes:
    """Return a value from a station.

    Raises:
        Lost: The actor, its station or its node has ended.
        UserError: The user can mend the reason.
        RuntimeError: The harness failed there.
    """
    try:
        value: bytes = cluster.ray().get(reference)
        return value
    except cluster.ray().exceptions.RayError as error:
        raise _told(error) from None


def _told(error: Any) -> Exception:
    """Return what an error of Ray's means: the station's own, or that its actor has ended."""
    if not isinstance(error, cluster.ray().exceptions.RayTaskError):
        return Lost(_short(error))
    if isinstance(error.cause, UserError | Lost):
        return type(error.cause)(str(error.cause))
    return RuntimeError(f"the harness failed on a node:\n{error}")


def _short(error: BaseException) -> str:
    """Return the first line of an error, and the last where a node's environment is not made."""
    first, *others = str(error).strip().split("\n")
    if others and isinstance(error, cluster.ray().exceptions.RuntimeEnvSetupError):
        return f"{first} {others[-1].strip()}"
    return first.strip() or type(error).__name__
