"""The solutions that a board draws: all of a group's; the best of thousands, with their places.

Every solution of a device is ranked, from the outline of its rows; those that are drawn are read in
full. A group of 50 with 22 rows each on 3 GPUs is drawn whole; of 10,000 solutions with 70 rows
each, the best 11 of each op.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from common import paths
from common.board.devices import ordered
from common.board.ranking import Cell
from common.board.scores import Pair, Score, numbers, scores
from common.records import runs
from common.records.outline import Outline, Row
from common.records.runs import Results

ROWS = 4_000
"""The rows of the board's tier that are drawn, of all devices together; the page takes its time."""
DEVICES = 4
"""Devices that are drawn whole."""
Timed = tuple[int, Pair]
"""A row's version of the clock, and its times."""
Track = tuple[str, str]
"""An op and a track."""


class Field:
    """Everyone on a device, as far as the board's tier ranks them."""

    def __init__(self, folder: Path, known: Container[str]) -> None:
        """Go over the records of the solutions that are known, those in this tree."""
        self._outline = Outline(folder)
        self._tracks: dict[Track, dict[str, dict[Cell, Timed | None]]] = defaultdict(dict)
        self._peers: set[str] = set()
        self._cells: dict[Cell, Cell] = {}  # so that a million rows have few cells between them
        for row in self._outline.rows():
            if row.tier == "board" and row.solution in known:
                self._add(row)
        self.results = self._outline.read(())
        """The runs, and a few rows that tell which cases count."""

    @cached_property
    def names(self) -> dict[str, str]:
        """The op of each solution that has a row."""
        return {name: op for (op, _), found in self._tracks.items() for name in found}

    @cached_property
    def size(self) -> int:
        """The rows that the board's tier would show of everyone."""
        return sum(len(found) for of in self._tracks.values() for found in of.values())

    @cached_property
    def places(self) -> dict[tuple[str, str, str], int]:
        """Everyone's place, by op, track and solution."""
        return {
            (*track, name): place
            for track, found in self._scores()
            for name, place in zip(found, numbers(list(found.values())), strict=True)
        }

    def best(self, rows: int) -> set[str]:
        """Return the peers, and of each op the best solutions that have so many rows in all."""
        share, found = min(rows / max(self.size, 1), 1.0), set(self._peers)
        order = self._order()
        for op in set(self.names.values()):
            names = [name for name in order if self.names[name] == op]
            found.update(names[: math.ceil(share * len(names))])
        return found

    def read(self, names: Container[str], always: Iterable[str] = ()) -> Results:
        """Return these solutions' records, with everyone's places; `always` does not count."""
        found = self._outline.read({*(name for name in self.names if name in names), *always})
        unshown = {op: line for op in set(self.names.values()) if (line := self._line(op, names))}
        return replace(found, places=self.places, unshown=unshown)

    def _add(self, row: Row) -> None:
        named: Cell = (row.case, row.direction)
        cell = self._cells.setdefault(named, named)
        timed = row.times if row.verdict == "PASSED" else None
        self._tracks[row.op, row.track].setdefault(row.solution, {})[cell] = timed and (
            row.clock,
            timed,
        )
        if row.peer:
            self._peers.add(row.solution)

    def _scores(self) -> Iterator[tuple[Track, dict[str, Score]]]:
        """Yield the scores of each track, the best first; see `ranking.rank`."""
        track_of = {(row.op, row.case): row.track for row in self.results.latest()}
        for track, solutions in self._tracks.items():
            cells = {cell for found in solutions.values() for cell in found}
            cells = {cell for cell in cells if track_of.get((track[0], cell[0])) == track[1]}
            timed = (each for found in solutions.values() for each in found.values() if each)
            clock = max((version for version, _ in timed), default=0)
            whole = {
                name: pairs
                for name, rows in solutions.items()
                if len(pairs := _pairs(rows, cells, clock)) == len(cells) > 0
            }
            ranked = zip(whole, scores(list(whole.values())), strict=True)
            yield track, dict(sorted(ranked, key=lambda each: -each[1].value))

    def _order(self) -> list[str]:
        """Return the contributors' solutions by their best place in any track, then by coverage."""
        best = dict.fromkeys(self.names, math.inf)
        for (_, _, name), place in self.places.items():
            best[name] = min(best[name], place)
        passed: dict[str, int] = defaultdict(int)
        for solutions in self._tracks.values():
            for name, rows in solutions.items():
                passed[name] += sum(map(bool, rows.values()))
        return sorted(
            self.names.keys() - self._peers, key=lambda name: (best[name], -passed[name], name)
        )

    def _line(self, op: str, names: Container[str]) -> str:
        """Return a line on the solutions that are not drawn, if there are any."""
        everyone = [name for name, of in self.names.items() if of == op]
        if (number := sum(name in names for name in everyone)) == len(everyone):
            return ""
        shown = f"Shown: {number:,} of {len(everyone):,} solutions, with their places among all"
        return f"{shown}; on the page, a single case or direction ranks these alone."


def _pairs(rows: Mapping[Cell, Timed | None], cells: Iterable[Cell], clock: int) -> list[Pair]:
    """Return the times of the cells that the solution passed, by this version of the clock."""
    found = [rows.get(cell) for cell in cells]
    return [each[1] for each in found if each and each[0] == clock]


@dataclass(frozen=True)
class Drawn:
    """The records that are drawn, and what they leave out."""

    boards: list[Results]
    """In the order of boards."""
    hidden: Container[str]
    """The solutions that have records and are not drawn."""
    more: int
    """Further devices."""


def drawn(known: Container[str], always: Iterable[str] = ()) -> Drawn:
    """Return the records to draw.

    Args:
        known: The solutions in this tree.
        always: Solutions that are read, for a terminal, even if they are not among the best.
    """
    runs.name_old_files(paths.RESULTS)
    with runs.without_collection():
        found = [Field(folder, known) for folder in sorted(paths.RESULTS.glob("*/"))]
        by_path = {each.results.path: each for each in found if each.results.rows}
        order = ordered(each.results for each in by_path.values())
        fields = [by_path[each.path] for each in order[:DEVICES]]
        names = set().union(*(each.best(ROWS // len(fields)) for each in fields))
        boards = [each.read(names, always) for each in fields]
    hidden = set().union(*(each.names for each in found)) - names
    return Drawn(boards, hidden, len(order) - len(fields))
