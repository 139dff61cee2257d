"""Engines: what spreads units over stations, and the scheduler that all engines share."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import Protocol

from common.engines.units import SIZES, Answer, Event, Failed, Finished, Job, Ready, Sizes, Unit
from common.engines.work import Gathered, Work
from common.errors import UserError

UNLUCKY = 10
"""Losses in a row, with no case done in between, after which a station is not started again where
others are left: the machine, and no case, may be at fault."""
Answers = list[Answer] | str
"""All answers of one case; or a line for the user."""


class Lost(Exception):
    """A station's process or node has ended or hangs; the text says how."""


class Station(Protocol):
    """The driver's hold on one station."""

    name: str
    """Unique among the stations."""

    def start(self) -> Ready:
        """Start the station, or start it again, and return its device.

        Raises:
            Lost: It does not start.
            UserError: The user can mend the reason.
        """

    def run(self, unit: Unit) -> Iterator[Event]:
        """Yield the events of a unit, up to Finished or Failed.

        Raises:
            Lost: The station has ended, or has said nothing for too long and was ended.
        """

    def close(self) -> None:
        """End the station; any thread may call it, and `run` then raises Lost."""


class Engine(Protocol):
    """Stations that are ready to take units; a context manager."""

    job: Job
    kinds: dict[str, list[Ready]]
    """The devices, by kind."""
    memory: dict[str, dict[str, int]]
    """The most bytes of GPU memory that a station of each kind has taken so far."""
    notes: list[str]
    """Lines on stations that could not start."""

    def __enter__(self) -> Engine:
        """Start the stations."""

    def __exit__(self, *_: object) -> None:
        """End the stations."""

    def sizes(self, kind: str) -> Sizes:
        """Return the sizes of the units that a kind of device takes."""

    def run(self, units: Mapping[str, Sequence[Unit]]) -> Iterator[tuple[str, Answers]]:
        """Yield the answers of each case once, with the kind of device."""

    @property
    def busy(self) -> tuple[int, int]:
        """The stations that are at work, and all that are left."""


def notes(engine: Engine) -> list[str]:
    """Return the lines of an engine and of its stations, each once, without `study: ` before."""
    said = [note for found in engine.kinds.values() for each in found for note in each.notes]
    return list(dict.fromkeys(note.removeprefix("study: ") for note in [*engine.notes, *said]))


def cases(engine: Engine, kind: str) -> dict[str, tuple[str, ...]]:
    """Return the cases of each op that every device of a kind has room for."""
    first, *others = engine.kinds[kind]
    return {
        op: _in_all(found, [each.cases.get(op, ()) for each in others])
        for op, found in first.cases.items()
    }


def count(engine: Engine, kind: str) -> int:
    """Return the number of the cases of all solutions on a kind of device."""
    known = cases(engine, kind)
    return sum(len(known.get(each.op, ())) for each in engine.job.solutions)


def _in_all(names: Sequence[str], others: Iterable[Sequence[str]]) -> tuple[str, ...]:
    """Return the names that all others have too, in their order; there may be 12,600."""
    shared = set(names).intersection(*others)
    return tuple(name for name in names if name in shared)


class Fleet:
    """Stations in processes or on nodes of their own, a thread for each; see `Engine`."""

    def __init__(self, job: Job, stations: Sequence[Station]) -> None:
        """Start nothing yet."""
        self.job, self._stations = job, stations
        self._kind: dict[str, str] = {}
        self.kinds: dict[str, list[Ready]] = defaultdict(list)
        self.memory: dict[str, dict[str, int]] = defaultdict(dict)
        self.notes: list[str] = []
        self._at_work: set[str] = set()
        self._alive: set[str] = set()
        self._closed = False
        self._work: list[Work] = []
        self._found: SimpleQueue[tuple[str, Answers] | BaseException | None] = SimpleQueue()

    def __enter__(self) -> Fleet:
        """Start all stations at the same time.

        Raises:
            UserError: None of them starts.
        """
        for station, ready in zip(self._stations, self._start(), strict=True):
            self._admit(station, ready)
        if not self._alive:
            raise UserError("; ".join(self.notes))
        return self

    def __exit__(self, *_: object) -> None:
        """End all stations at the same time."""
        self._closed = True
        for work in self._work:
            work.close()
        with ThreadPoolExecutor(max(len(self._stations), 1)) as pool:
            list(pool.map(lambda station: station.close(), self._stations))

    def sizes(self, kind: str) -> Sizes:
        """Return the sizes of the units of a kind of device, for all of its stations."""
        sizes = SIZES[self.job.command]
        return Sizes(sizes.least, sizes.most, len(self.kinds[kind]))

    @property
    def busy(self) -> tuple[int, int]:
        """The stations that are at work, and all that are left."""
        return len(self._at_work), len(self._alive)

    def run(self, units: Mapping[str, Sequence[Unit]]) -> Iterator[tuple[str, Answers]]:
        """Yield the answers of each case once, with the kind of device.

        Raises:
            UserError: No station of a kind is left, or the harness failed on one.
        """
        work = {
            kind: Work(units[kind], [name for name in self._alive if self._kind[name] == kind])
            for kind in units
        }
        self._work = list(work.values())
        serving = [each for each in self._stations if each.name in self._alive]
        for station in serving:
            of = work[self._kind[station.name]]
            threading.Thread(target=self._serve, args=(station, of), daemon=True).start()
        for _ in serving:
            while (found := self._found.get()) is not None:
                if isinstance(found, BaseException):
                    raise found
                yield found
        if any(each.left for each in work.values()):
            raise UserError("no device is left for the other cases; the same command goes on")

    def _start(self) -> list[Ready | str]:
        """Return each station's device, or the reason for which it does not start."""
        pool = ThreadPoolExecutor(len(self._stations))
        try:
            return list(pool.map(_started, self._stations))
        except BaseException:  # Ctrl-C too: no thread then waits for a station that starts
            self.__exit__()
            raise
        finally:
            pool.shutdown()

    def _admit(self, station: Station, ready: Ready | str) -> None:
        """Count on a station that has started, and close any other."""
        if isinstance(ready, Ready) and self._agrees(ready):
            self._kind[station.name] = ready.place.kind
            self.kinds[ready.place.kind].append(ready)
            self._alive.add(station.name)
        else:
            station.close()
            said = "has other versions of its packages" if isinstance(ready, Ready) else ready
            self.notes.append(f"{station.name} takes no part: {said}")

    def _agrees(self, ready: Ready) -> bool:
        """Return whether the station has the versions of the first one of its kind."""
        first = self.kinds.get(ready.place.kind, [ready])[0]
        return first.place.versions == ready.place.versions

    def _serve(self, station: Station, work: Work) -> None:
        """Have a station do units until there are no more, or it is lost for good."""
        try:
            unlucky = 0
            while not self._closed and (unit := work.take(station.name)):
                gathered = Gathered(unit)
                try:
                    self._do(station, unit, gathered)
                    unlucky = 0
                    work.done()
                except Lost as lost:
                    if self._closed:
                        return
                    self._say(station, f"was lost: {lost}")
                    work.lost(unit, station.name, gathered.whole)
                    unlucky = 0 if gathered.whole else unlucky + 1
                    if unlucky >= UNLUCKY and work.others(station.name):
                        self._say(station, "takes no part any more: it was lost again and again")
                        return
                    if not self._starts_again(station):
                        return
        except BaseException as error:
            self._found.put(error)
        finally:
            work.leave(station.name)
            self._alive.discard(station.name)
            self._found.put(None)

    def _do(self, station: Station, unit: Unit, gathered: Gathered) -> None:
        kind = self._kind[station.name]
        self._at_work.add(station.name)
        try:
            for event in station.run(unit):
                if isinstance(event, Failed):
                    raise _failure(event)
                if isinstance(event, Finished):
                    self._count(kind, event.memory)
                if not isinstance(event, Ready):
                    for answer in gathered.take(event):
                        self._found.put((kind, answer))
        finally:
            self._at_work.discard(station.name)

    def _starts_again(self, station: Station) -> bool:
        """Start a lost station; return whether it takes units again."""
        ready = _started(station)
        if isinstance(ready, Ready):
            known = cases(self, self._kind[station.name])
            if all({*known[op]} <= {*ready.cases.get(op, ())} for op in known):
                return True
            station.close()
            ready = "less of its memory is free than before"
        self._say(station, f"does not start again: {ready}")
        return False

    def _say(self, station: Station, words: str) -> None:
        """Yield a line on a station from `run`."""
        self._found.put((self._kind[station.name], f"{station.name} {words}"))

    def _count(self, kind: str, memory: Mapping[str, int]) -> None:
        most = self.memory[kind]
        for name, size in memory.items():
            most[name] = max(size, most.get(name, 0))


def _started(station: Station) -> Ready | str:
    """Return the station's device, or the reason for which it does not start."""
    try:
        return station.start()
    except (Lost, UserError) as error:
        return str(error)


def _failure(event: Failed) -> Exception:
    """Return the exception for a failure of the harness."""
    if event.trace:
        return RuntimeError(f"the harness failed on a device:\n{event.trace}")
    return UserError(event.reason)
