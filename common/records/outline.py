"""A device's records in outline: as much of each row as ranks it, and the place of each line.

A board of thousands of solutions ranks all from the outline, and reads in full what it draws:

    outline = Outline.of(folder)
    outline.rows.timings
    results = outline.read({"house/rope"})
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from common.processes import cores, processes
from common.records import jsonl, runs
from common.records.lines import FORMAT, Anything
from common.records.runs import Results
from common.records.scan import NOBODY, Cell, Part, Scan, Witness, invalid, parts, scan

PART = 32 << 20
"""Bytes that a process scans at a time; less than that is scanned here."""
TURNS = 16
"""Small files go to a process together, so that each takes about so many turns."""
T = TypeVar("T")
Integers = npt.NDArray[np.signedinteger[Any]]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Rows:
    """The columns of the board's rows, in the order of time."""

    solutions: Integers
    """Numbers of `Outline.names`."""
    cells: Integers
    """Numbers of `Outline.cells`."""
    timings: Floats
    """By row, the seven numbers of `fields.timing`."""


@dataclass(frozen=True)
class Lines:
    """The lines of one run's file."""

    starts: Integers
    solutions: Integers
    """The number of each line's solution; `NOBODY` where the line is read whoever is drawn."""
    gist: Integers
    """The places of the lines that are of no solution, and of one of each kind, op and tier."""


class Outline:
    """The lines of a device by solution, and the rows of its board."""

    def __init__(self, folder: Path, scans: Iterable[Scan]) -> None:
        """Join the scans of the folder's files.

        Raises:
            UserError: A file holds the lines of several runs.
        """
        self.folder = folder
        self.names: dict[str, int] = {}
        """The number of each solution."""
        self.cells: dict[Cell, int] = {}
        self.peers: set[str] = set()
        by_file: dict[Path, list[Scan]] = {}
        for each in scans:
            by_file.setdefault(each.path, []).append(each)
            self.peers |= each.peers
        self._lines = {path: self._joined(found) for path, found in by_file.items()}
        every = list(chain.from_iterable(by_file.values()))
        self.rows = Rows(
            _column([self._solutions(each, each.row_solutions) for each in every]),
            _column([_renumbered(each.cells, self.cells, each.row_cells) for each in every]),
            np.concatenate([np.zeros(0), *(each.timings for each in every)]).reshape(-1, 7),
        )

    @classmethod
    def of(cls, folder: Path) -> Outline:
        """Return the outline of a folder.

        Raises:
            UserError: A line is not valid, as far as the outline reads it.
        """
        (found,) = outlines([folder])
        return found

    @property
    def ranked(self) -> set[str]:
        """The solutions that have a row of the board."""
        names = list(self.names)
        return {names[number] for number in np.unique(self.rows.solutions).tolist()}

    def gist(self) -> Results:
        """Return the lines that order devices: each run's own, one of each kind, op and tier."""
        return self._read({path: lines.gist for path, lines in self._lines.items()})

    def read(self, names: Iterable[str]) -> Results:
        """Return the records of these solutions in full.

        The first row of each run and case is among them, whosever it is: it says what was measured.

        Raises:
            UserError: One of these lines is not valid.
        """
        wanted = [NOBODY, *(self.names[name] for name in names if name in self.names)]
        return self._read({
            path: lines.starts[np.isin(lines.solutions, wanted)]
            for path, lines in self._lines.items()
        })  # fmt: skip

    def _read(self, places: dict[Path, Integers]) -> Results:
        results = Results(self.folder)
        for path, wanted in places.items():
            with path.open("rb") as file:
                for place in wanted.tolist():
                    file.seek(place)
                    runs.add(results, path, _decoded(file.readline(), path, place))
        return results

    def _joined(self, scans: Sequence[Scan]) -> Lines:
        """Return the lines of the parts of one file."""
        if any(each.torn for each in scans):
            jsonl.notice_torn(scans[0].path)
        for each in scans:
            if each.run not in ("", scans[0].run):
                raise invalid(each.path, each.starts[0], runs.FOREIGN)
        starts = _column([np.array(each.starts) for each in scans])
        solutions = _column([self._solutions(each, each.solutions) for each in scans])
        witnesses: dict[Witness, int] = {}
        before = 0
        for each in scans:
            for witness, line in each.witnesses.items():
                witnesses.setdefault(witness, before + line)
            before += len(each.starts)
        of_nobody = np.flatnonzero(solutions == NOBODY)
        gist = {witness[:3]: line for witness, line in reversed(witnesses.items())}
        solutions[list(witnesses.values())] = NOBODY
        told = sorted({*of_nobody.tolist(), *gist.values()})
        return Lines(starts, solutions, starts[told])

    def _solutions(self, found: Scan, column: array[int]) -> Integers:
        return _renumbered(found.names, self.names, column)


def outlines(folders: Iterable[Path]) -> Iterator[Outline]:
    """Yield the outline of each folder; where there is much to read, all cores scan.

    Raises:
        UserError: A line is not valid, as far as the outline reads it.
    """
    of = {folder: [part for path in runs.files(folder) for part in parts(path, PART)]
          for folder in folders}  # fmt: skip
    every = list(chain.from_iterable(of.values()))
    scans = _scanned(every)
    for folder, found in of.items():
        yield Outline(folder, islice(scans, len(found)))


def _scanned(every: Sequence[Part]) -> Iterator[Scan]:
    if sum(part.stop - part.start for part in every) <= PART:
        yield from map(scan, every)
        return
    workers = min(cores(), len(every))
    with processes(workers) as pool:
        yield from pool.map(scan, every, chunksize=max(1, len(every) // (TURNS * workers)))


def _column(found: Sequence[Integers]) -> Integers:
    return np.concatenate([np.zeros(0, np.int32), *found])


def _renumbered(own: Sequence[T], known: dict[T, int], column: array[int]) -> Integers:
    """Return a column whose numbers are places in `known`, where what is new is added."""
    numbers = [known.setdefault(each, len(known)) for each in own]
    found: Integers = np.array([*numbers, NOBODY], np.int32)[np.array(column)]
    return found


def _decoded(raw: bytes, path: Path, place: int) -> Anything:
    try:
        line: Anything = FORMAT.decoder.decode(raw)
        return line
    except ValueError as error:
        raise invalid(path, place, str(error), raw) from None
