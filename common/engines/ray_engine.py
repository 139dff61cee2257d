"""The engine of a Ray cluster: a station on every GPU, placed by the kind of accelerator.

An actor on each GPU starts a station as a process of its node and passes its events on, as they
come. The project's files travel as Ray's runtime environment.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from common.engines import node
from common.engines.engine import Fleet, Lost
from common.engines.local import Process, share_cores
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
from common.paths import ROOT

TRAVELS = ("common", "contributors", "pyproject.toml")
"""The entries of the repository that a node needs."""
LABEL = "accelerator_type:"
"""How Ray's resources begin that name a node's kind of accelerator."""
LOOPBACK = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
"""The variable by which Ray binds to the loopback address alone, on Linux too; otherwise each of
its processes listens on every interface. It is read when Ray is imported."""


@dataclass(frozen=True)
class Slot:
    """One GPU of one node, or one node without a GPU."""

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
    gpu: bool


class Relay:
    """The actor: a station's process on this node, and what it says."""

    def __init__(self, job: bytes, name: str, environment: Mapping[str, str], number: int, of: int):
        """Copy the project to where no solution may write; start nothing yet."""
        root = node.settle(Path.cwd())
        cores = share_cores(sorted(os.sched_getaffinity(0)), of)[number]
        changed = {**environment, "PYTHONDONTWRITEBYTECODE": "1"}  # the copy stays as it was made
        self._station = Process(name, decode_job(job), root, changed, cores)

    def start(self) -> bytes:
        """Start the station, and return its first event."""
        return encode(self._station.start())

    def run(self, unit: bytes) -> Iterator[bytes]:
        """Yield the events of a unit."""
        for event in self._station.run(decode_unit(unit)):
            yield encode(event)  # Ray sends to this generator, which `yield from` would pass on


class RayStation:
    """The driver's hold on an actor; see `engine.Station`."""

    def __init__(self, job: Job, slot: Slot) -> None:
        """Start nothing yet."""
        simulated = job.device == "cpu" and slot.kind
        self._job = msgspec.structs.replace(job, name=slot.kind) if simulated else job
        self.name, self._slot = slot.name, slot
        self._actor: Any = None

    def start(self) -> Ready:
        """Start the actor on its node, and its station; see `engine.Station`."""
        self.close()
        hidden = {"CUDA_VISIBLE_DEVICES": ""} if self._job.device == "cpu" else {}
        words = encode(self._job), self.name, hidden, self._slot.number, self._slot.of
        self._actor = _actor(self._slot).remote(*words)
        ready = decode_event(_awaited(self._actor.start.remote()))
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
            except _ray().exceptions.RayError as error:
                raise _told(error) from None
            yield decode_event(_awaited(reference))

    def close(self) -> None:
        """End the actor; its station ends with it."""
        if self._actor is not None and _ray().is_initialized():
            _ray().kill(self._actor)
        self._actor = None


class RayFleet(Fleet):
    """The stations of a cluster."""

    def __init__(self, job: Job, address: str | None, install: bool = False) -> None:
        """Connect to nothing yet.

        Args:
            job: The job.
            address: HOST:PORT of the cluster's head; None for a cluster of this machine alone,
                which only it can reach.
            install: Whether each node installs the packages of the group `run` first.
        """
        super().__init__(job, [])
        self._address, self._install = address, install

    def __enter__(self) -> RayFleet:
        """Connect, and start a station on each GPU.

        Raises:
            UserError: There is no cluster, no GPU in it, or no station starts.
        """
        try:
            _connect(self._address, runtime_environment(self._install))
            self._stations = self._placed(slots_of(_ray().nodes(), self.job.device))
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
            _ray().shutdown()

    def _placed(self, slots: Sequence[Slot]) -> list[RayStation]:
        """Return a station for each slot, which times eager where there are several."""
        if not slots:
            raise UserError("the Ray cluster has no GPU: give --device cpu to grade without one")
        timed = self.job.command == "bench" and self.job.device == "cuda"
        self.job = msgspec.structs.replace(self.job, pace=timed and len(slots) > 1)
        return [RayStation(self.job, slot) for slot in slots]


def slots_of(nodes: Sequence[Mapping[str, Any]], device: str) -> list[Slot]:
    """Return the GPUs of the nodes that are alive, as `ray.nodes()` lists them.

    Without a GPU anywhere and for the device `cpu`, each node is one slot.
    """
    alive = [each for each in nodes if each["Alive"]]
    gpus = any(each["Resources"].get("GPU") for each in alive)
    found = []
    for each in alive:
        resources, host = each["Resources"], each["NodeManagerHostname"]
        count = int(resources.get("GPU", 0)) if gpus else int(device == "cpu")
        kinds = [name.removeprefix(LABEL) for name in resources if name.startswith(LABEL)]
        for number in range(count):
            name = f"{host} {each['NodeID'][:6]} {'GPU' if gpus else 'station'} {number}"
            kind = kinds[0] if gpus and kinds else ""
            found.append(Slot(each["NodeID"], name, kind, number, count, gpus))
    return found


def runtime_environment(install: bool) -> dict[str, Any]:
    """Return what each node gets: the project's files, and packages if they are to be installed."""
    excluded = [f"/{each.name}" for each in ROOT.iterdir() if each.name not in TRAVELS]
    files = {"working_dir": str(ROOT), "excludes": [*excluded, "__pycache__"]}
    if not install:
        return files
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text())["dependency-groups"]
    return {**files, "pip": {"packages": _packages(groups, "run"), "pip_check": False}}


def _packages(groups: Mapping[str, Sequence[Any]], group: str) -> list[str]:
    """Return the packages of a dependency group, those of the groups that it includes too."""
    found = []
    for each in groups[group]:
        found += [each] if isinstance(each, str) else _packages(groups, each["include-group"])
    return found


def _connect(address: str | None, environment: Mapping[str, Any]) -> None:
    """Connect to a cluster, or start one that only this machine can reach.

    Raises:
        UserError: There is none at the address.
    """
    if address is None:
        os.environ.setdefault(LOOPBACK, "0")
    ray = _ray()
    try:
        ray.init(
            address=address or "local",
            runtime_env=dict(environment),
            include_dashboard=False if address is None else None,
            log_to_driver=False,
            logging_level="ERROR",
        )
    except ConnectionError as error:
        raise UserError(f"no Ray cluster at {address}: {_short(error)}") from None


def _actor(slot: Slot) -> Any:
    """Return the actor's class with its place."""
    ray = _ray()
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    place: dict[str, Any] = {"num_cpus": 1, "num_gpus": int(slot.gpu), "max_restarts": 0}
    if slot.gpu and slot.kind:
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
        value: bytes = _ray().get(reference)
        return value
    except _ray().exceptions.RayError as error:
        raise _told(error) from None


def _told(error: Any) -> Exception:
    """Return what an error of Ray's means: the station's own, or that its actor has ended."""
    if not isinstance(error, _ray().exceptions.RayTaskError):
        return Lost(_short(error))
    if isinstance(error.cause, UserError | Lost):
        return type(error.cause)(str(error.cause))
    return RuntimeError(f"the harness failed on a node:\n{error}")


def _short(error: BaseException) -> str:
    """Return the first line of an error."""
    return str(error).partition("\n")[0].strip() or type(error).__name__


def _ray() -> Any:
    """Return the module, which takes a second to import.

    Raises:
        ModuleNotFoundError: It is not installed.
    """
    import ray

    return ray
