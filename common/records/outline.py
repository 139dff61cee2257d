"""A device's records in outline: as much of each row as ranks it, and the place of each line.

A row in full takes five microseconds and three kilobytes, its outline a third and a tenth of that.
A board of thousands of solutions ranks all from the outline, and reads in full what it draws:

    outline = Outline(folder)
    for row in outline.rows(): ...
    results = outline.read({"house/rope"})
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import chain
from pathlib import Path

import msgspec

from common.errors import UserError
from common.records import jsonl, runs
from common.records.fields import Line, Summary
from common.records.lines import FORMAT, Anything, End, LeftOut, Run
from common.records.runs import Results
from common.spec import ByClock, Direction, Tier


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

    @property
    def times(self) -> tuple[Summary, Summary] | None:
        """The times of the solution and of eager that rank the row; None without them."""
        found = self.host if self.ranked_by == "host" else self.gpu
        return (found.solution, found.eager) if found else None


class Past(Brief, frozen=True, kw_only=True, forbid_unknown_fields=False, tag="past"):
    """A line of history."""


class Counted(Brief, frozen=True, kw_only=True, forbid_unknown_fields=False, tag="counted"):
    """Counted work."""


class Compiled(Brief, frozen=True, kw_only=True, forbid_unknown_fields=False, tag="compiled"):
    """A compiled kernel."""


Outlined = Run | Row | LeftOut | Past | Counted | Compiled | End
OUTLINED = msgspec.json.Decoder(Outlined)
NEWLINE = ord("\n")
ALWAYS = ""
"""The name under which the lines stand that are read whoever is drawn."""


class Outline:
    """The lines of a device by solution; `rows` goes over them once, before `read`."""

    def __init__(self, folder: Path) -> None:
        """Begin the outline of a folder."""
        self._folder = folder
        self._places: dict[Path, dict[str, array[int]]] = {}

    @classmethod
    def of(cls, folder: Path) -> Outline:
        """Return the outline of a folder, whose rows are not asked for."""
        found = cls(folder)
        for _ in found.rows():
            pass
        return found

    def rows(self) -> Iterator[Row]:
        """Yield every row in the order of time, and note the place of each line.

        Raises:
            UserError: A line is not valid, as far as the outline reads it.
        """
        for path in runs.files(self._folder):
            yield from self._rows(path)

    def read(self, names: Iterable[str]) -> Results:
        """Return the records of these solutions in full.

        The first row of each run and case is among them, whosever it is: it says what was measured.

        Raises:
            UserError: One of these lines is not valid.
        """
        results, wanted = Results(self._folder), sorted({ALWAYS, *names})
        for path, places in self._places.items():
            found = chain.from_iterable(places[name] for name in wanted if name in places)
            with path.open("rb") as file:
                for place in sorted(found):
                    file.seek(place)
                    runs.add(results, path, _decoded(file.readline(), path, place))
        return results

    def _rows(self, path: Path) -> Iterator[Row]:
        """Yield the rows of a run's file; see `runs.lines`. In one piece: a million lines pass."""
        places = self._places[path] = defaultdict(partial(array, "Q"))
        witnesses: set[tuple[str, str, str, type[Outlined]]] = set()
        decode, place, run = OUTLINED.decode, 0, None
        with path.open("rb", buffering=1 << 18) as file:
            for raw in file:
                if raw[-1] != NEWLINE:
                    return jsonl.notice_torn(path)
                try:
                    line = decode(raw)
                except ValueError as error:
                    raise _invalid(path, place, str(error)) from None
                kind, run, name = type(line), run or line.run, ALWAYS
                if line.run != run or (kind is Run) != (place == 0):
                    raise _invalid(path, place, runs.FOREIGN)
                if isinstance(line, Brief):
                    witness = line.case, line.op, line.tier, kind
                    if witness in witnesses:
                        name = line.solution
                    else:
                        witnesses.add(witness)
                places[name].append(place)
                place += len(raw)
                if kind is Row:
                    yield line


def _decoded(raw: bytes, path: Path, place: int) -> Anything:
    try:
        line: Anything = FORMAT.decoder.decode(raw)
        return line
    except ValueError as error:
        raise _invalid(path, place, str(error)) from None


def _invalid(path: Path, place: int, reason: str) -> UserError:
    """Return the error for the line at a place, which is the number of bytes before it."""
    with path.open("rb") as file:
        number = file.read(place).count(b"\n") + 1
    return FORMAT.invalid(path, number, reason)
