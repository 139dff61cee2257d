"""Jobs, units of work and events: the JSON lines between a driver and its stations.

A driver starts each station with the job, which all units share, and hands it one unit after the
other; the station answers with events.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypedDict, cast

import msgspec

from common.paths import ROOT
from common.records.lines import Record
from common.records.runs import Place
from common.records.writer import Samples
from common.solutions import Solution
from common.spec import Direction, Tier
from common.verdicts import Verdict


class Source(msgspec.Struct, frozen=True):
    """A solution's file, relative to the repository where it lies in there."""

    path: str
    op: str

    @classmethod
    def of(cls, solution: Solution) -> Source:
        """Return the source of a solution."""
        inside = solution.path.is_relative_to(ROOT)
        path = solution.path.relative_to(ROOT) if inside else solution.path
        return cls(str(path), solution.op)

    @property
    def solution(self) -> Solution:
        """Return the solution, in this process's copy of the repository."""
        return Solution(ROOT / Path(self.path), self.op)


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """The options that all units of one command have in common."""

    command: Literal["bench", "grade"]
    device: Literal["cpu", "cuda"]
    sources: tuple[Source, ...]
    tier: Tier
    sample: int | None = None
    memory: int | None = None
    """Bytes of each GPU's memory that may be taken; None for all that is free."""
    verbose: bool = False
    pace: bool = False
    """Whether each station times eager on one case, so that devices of a kind can be compared."""
    name: str = ""
    """The device's name in place of its own, for simulated GPUs."""

    @property
    def solutions(self) -> list[Solution]:
        """Return the solutions."""
        return [source.solution for source in self.sources]


class Unit(msgspec.Struct, frozen=True, kw_only=True):
    """Some cases of one op for some solutions, which one device takes without interruption."""

    op: str
    cases: tuple[str, ...]
    solutions: tuple[str, ...]
    """The solutions' names."""
    done: frozenset[tuple[str, str]] = frozenset()
    """Solution and case of those that an earlier run has done."""
    run: str = ""
    """The id of the run that rows are for."""
    tries: int = 0
    """How often a station was lost in these cases."""
    lost_on: tuple[str, ...] = ()
    """The names of those stations."""
    crashed: str = ""
    """The reason for which every verdict is CRASHED, and nothing is run."""

    def due(self, case: str) -> set[str]:
        """Return the solutions that are to answer a case."""
        return {each for each in self.solutions if (each, case) not in self.done}


# --- events ---------------------------------------------------------------------------------------


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """A station has started: its device, and the cases of each op that it has room for."""

    place: Place
    cases: dict[str, tuple[str, ...]]
    notes: tuple[str, ...] = ()
    """Lines on cases that are left out."""
    pace: float | None = None
    """Eager's microseconds on one case that is the same for all devices."""


class Rows(msgspec.Struct, frozen=True, tag="rows"):
    """Both directions of a case of one solution, with the raw samples of those that were timed."""

    rows: tuple[Record, ...]
    samples: tuple[Samples | None, ...]

    @property
    def of(self) -> tuple[str, str]:
        """Return the solution and the case."""
        return self.rows[0].solution, self.rows[0].case

    @property
    def errors(self) -> list[float | None]:
        """Return the error of each row."""
        return [row.error for row in self.rows]


class Said(TypedDict):
    """A verdict as `Verdict.json` has it."""

    solution: str
    op: str
    case: str
    direction: Direction
    verdict: str
    reason: str
    error: float | None
    notes: tuple[str, ...]


class Verdicts(msgspec.Struct, frozen=True, tag="verdicts"):
    """The verdicts of one solution on a case."""

    found: tuple[Said, ...]

    @classmethod
    def of_all(cls, found: Iterable[Verdict]) -> Verdicts:
        """Return verdicts in the form of an event."""
        return cls(tuple(cast(Said, each.json) for each in found))

    @property
    def of(self) -> tuple[str, str]:
        """Return the solution and the case."""
        return self.found[0]["solution"], self.found[0]["case"]

    @property
    def errors(self) -> list[float | None]:
        """Return the error of each verdict."""
        return [each["error"] for each in self.found]

    @property
    def verdicts(self) -> list[Verdict]:
        """Return the verdicts themselves."""
        return [Verdict(**each) for each in self.found]


class TooLarge(msgspec.Struct, frozen=True, tag="too_large"):
    """A case that does not fit the device."""

    op: str
    case: str
    reason: str


class Finished(msgspec.Struct, frozen=True, tag="finished"):
    """The end of a unit, with the most bytes of GPU memory so far, by holder."""

    memory: dict[str, int] = {}


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """The harness failed on this station, through no solution: the sweep ends."""

    reason: str
    trace: str = ""
    """The traceback, unless the user can mend the cause."""


Answer = Rows | Verdicts | TooLarge
Event = Ready | Answer | Finished | Failed
_EVENT = msgspec.json.Decoder(Event)
_JOB, _UNIT = msgspec.json.Decoder(Job), msgspec.json.Decoder(Unit)


def decode_event(line: bytes) -> Event:
    """Return the event of a line."""
    event: Event = _EVENT.decode(line)
    return event


def decode_job(line: bytes) -> Job:
    """Return the job of a line."""
    return _JOB.decode(line)


def decode_unit(line: bytes) -> Unit:
    """Return the unit of a line."""
    return _UNIT.decode(line)


def encode(message: Event | Job | Unit) -> bytes:
    """Return the line of a message.

    Raises:
        ValueError: An error is infinite or no number, which JSON does not have.
    """
    if isinstance(message, Rows | Verdicts) and not all(
        math.isfinite(error) for error in message.errors if error is not None
    ):
        raise ValueError(f"{message.of}: errors of {message.errors}")
    return msgspec.json.encode(message) + b"\n"


# --- plans ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sizes:
    """The numbers of cases in a unit."""

    least: int
    most: int
    stations: int = 1
    """The devices that share the units."""

    def take(self, rest: int) -> int:
        """Return the cases of the next unit: half of a station's share of the rest.

        For two stations, units of 1 to 3 of ten cases have the sizes 3, 2, 2, 1, 1 and 1: the last
        ones are small, so that all devices end at about the same time.
        """
        return max(self.least, min(math.ceil(rest / (2 * self.stations)), self.most))


SIZES = {"bench": Sizes(1, 3), "grade": Sizes(16, 1024)}
"""By command; the cases of a timed unit are graded at once before they are timed."""
WHOLE = Sizes(1 << 40, 1 << 40)
"""Each op is one unit: nothing is lost where the station is the driver itself."""


def plan(
    job: Job,
    cases: Mapping[str, Sequence[str]],
    sizes: Sizes,
    run: str = "",
    done: Collection[tuple[str, str, str]] = (),
) -> list[Unit]:
    """Return the units of one kind of device, op by op and case by case.

    Args:
        job: The job.
        cases: The names of the cases of each op.
        sizes: The sizes of the units.
        run: The id of the run that rows are for.
        done: Solution, op and case of those that an earlier run has done.
    """
    names: dict[str, list[str]] = defaultdict(list)
    for solution in job.solutions:
        names[solution.op].append(solution.name)
    taken: dict[str, set[tuple[str, str]]] = defaultdict(set)
    for solution_name, op, case in done:
        taken[op].add((solution_name, case))
    left = {
        op: [case for case in every if any((each, case) not in taken[op] for each in names[op])]
        for op, every in cases.items()
    }
    rest, units = sum(map(len, left.values())), []
    for op, due in left.items():
        while due:
            part, due = due[: sizes.take(rest)], due[sizes.take(rest) :]
            rest -= len(part)
            known = frozenset(pair for pair in taken[op] if pair[1] in part)
            units.append(Unit(op=op, cases=tuple(part), solutions=tuple(names[op]), done=known,
                              run=run))  # fmt: skip
    return units
