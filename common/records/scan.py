"""One pass over a part of a run's file: the place of each line, and as much of a row as ranks it.

A row in full takes five microseconds and three kilobytes; scanned, it takes half and a fortieth of
that. The columns are arrays, which pass quickly from one process to another.
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import msgspec

from common.errors import UserError
from common.records import runs
from common.records.fields import Line, Summary, Timing, timing
from common.records.lines import FORMAT, End, LeftOut, Run
from common.spec import ByClock, Direction, Tier

Cell = tuple[str, str, str, str]
"""An op, a track, a case and a direction."""
Witness = tuple[type, str, str, str]
"""A kind of line, an op, a tier and a case."""
NOBODY = -1
"""The solution of a line that is of none."""
NEWLINE = ord("\n")


class Times(msgspec.Struct, frozen=True, gc=False):
    """The two times of a row that rank it."""

    solution: Summary
    eager: Summary


class Brief(Line, frozen=True, kw_only=True, gc=False, forbid_unknown_fields=False, tag="brief"):
    """A line of a solution."""

    solution: str
    op: str
    case: str
    tier: Tier = "board"


class Row(Brief, frozen=True, kw_only=True, gc=False, forbid_unknown_fields=False, tag="row"):
    """A `Record` without what a ranking does not ask for."""

    track: str
    direction: Direction
    verdict: str
    ranked_by: ByClock
    peer: bool = False
    gpu: Times | None = None
    host: Times | None = None
    clock: int = 1


class Past(Brief, frozen=True, kw_only=True, forbid_unknown_fields=False, tag="past"):
    """A line of history."""


class Counted(Brief, frozen=True, kw_only=True, forbid_unknown_fields=False, tag="counted"):
    """Counted work."""


class Compiled(Brief, frozen=True, kw_only=True, forbid_unknown_fields=False, tag="compiled"):
    """A compiled kernel."""


SCANNED = msgspec.json.Decoder(Run | Row | LeftOut | Past | Counted | Compiled | End)


@dataclass(frozen=True)
class Part:
    """The lines of a run's file that begin at these places, which are numbers of bytes."""

    path: Path
    start: int
    stop: int


@dataclass
class Scan:
    """The columns of a part: of every line, and of the board's rows."""

    path: Path
    run: str = ""
    torn: bool = False
    """Whether a kill cut off the last line, which is left out."""
    names: list[str] = field(default_factory=list)
    cells: list[Cell] = field(default_factory=list)
    peers: set[str] = field(default_factory=set)
    witnesses: dict[Witness, int] = field(default_factory=dict)
    """The first line of each case, whosever it is: it says what was measured."""
    starts: array[int] = field(default_factory=lambda: array("q"))
    solutions: array[int] = field(default_factory=lambda: array("i"))
    """By line, the number of the solution's name."""
    row_solutions: array[int] = field(default_factory=lambda: array("i"))
    row_cells: array[int] = field(default_factory=lambda: array("i"))
    timings: array[float] = field(default_factory=lambda: array("d"))
    """The seven numbers of each row's `timing`."""


def parts(path: Path, size: int) -> list[Part]:
    """Return a file in parts of about so many bytes."""
    end = path.stat().st_size
    return [Part(path, start, min(start + size, end)) for start in range(0, end, size)]


def scan(part: Part) -> Scan:
    """Return the columns of a part; one long function, since a million lines pass.

    Raises:
        UserError: A line is not valid, as far as a ranking reads it.
    """
    found = Scan(part.path)
    names: defaultdict[str, int] = defaultdict(count().__next__)
    cells: defaultdict[Cell, int] = defaultdict(count().__next__)
    decode, witnesses = SCANNED.decode, found.witnesses
    starts, solutions = found.starts, found.solutions
    for raw, place in _lines(part):
        if raw[-1] != NEWLINE:
            found.torn = True
            break
        try:
            line = decode(raw)
        except ValueError as error:
            raise invalid(part.path, place, str(error), raw) from None
        kind, found.run = type(line), found.run or line.run
        if line.run != found.run or (kind is Run) != (place == 0):
            raise invalid(part.path, place, runs.FOREIGN)
        mine = NOBODY
        if isinstance(line, Brief):
            mine = names[line.solution]
            witnesses.setdefault((kind, line.op, line.tier, line.case), len(starts))
            if isinstance(line, Row) and line.tier == "board":
                found.row_solutions.append(mine)
                found.row_cells.append(cells[line.op, line.track, line.case, line.direction])
                found.timings.extend(_timing(line))
                if line.peer:
                    found.peers.add(line.solution)
        starts.append(place)
        solutions.append(mine)
    found.names, found.cells = list(names), list(cells)
    return found


def _lines(part: Part) -> Iterator[tuple[bytes, int]]:
    """Yield each line that begins in the part, with its place."""
    with part.path.open("rb", buffering=1 << 18) as file:
        place = max(part.start - 1, 0)
        file.seek(place)
        if part.start:
            place += len(file.readline())  # the rest of a line that begins before the part
        for raw in file:
            if place >= part.stop:
                return
            yield raw, place
            place += len(raw)


def _timing(row: Row) -> Timing:
    if not row.gpu:
        return timing()
    times = row.host if row.ranked_by == "host" else row.gpu
    if not times or row.verdict != "PASSED":
        return timing(row.clock)
    return timing(row.clock, (times.solution, times.eager))


def invalid(path: Path, place: int, reason: str, line: bytes = b"") -> UserError:
    """Return the error for the line at a place, which is the number of bytes before it."""
    with path.open("rb") as file:
        number = file.read(place).count(b"\n") + 1
    return FORMAT.invalid(path, number, reason, line)
