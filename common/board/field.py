"""The solutions that a board draws: all of a group's; the best of thousands, with their places.

Every solution of a device is ranked, from the outline of its rows; those that are drawn are read in
full. A group of 50 solutions with 22 rows each on 3 GPUs is drawn whole; of 10,000 solutions with
70 rows each, the best 7 of each op.
"""

from __future__ import annotations

import math
import sys
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

WHOLE, BEST = 5_000, 2_000
"""Rows of the board's tier, of all devices together: so many are all drawn, of more so many."""
DEVICES = 8
"""The most devices that are drawn: each takes a second of its plots."""
Timing = tuple[str, int, Pair | None]
"""A row's track, the version of the clock that timed it, or 0, and its times where it passed."""
Rows = dict[Cell, Timing]


class Field:
    """Everyone on a device, as far as the board's tier ranks them."""

    def __init__(self, folder: Path, known: Container[str]) -> None:
        """Go over the records of the solutions that are known, those in this tree."""
        self._outline = Outline(folder)
        self._ops: dict[str, dict[str, Rows]] = defaultdict(dict)
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
        return {name: op for op, solutions in self._ops.items() for name in solutions}

    @cached_property
    def size(self) -> int:
        """The rows that the board's tier would show of everyone."""
        return sum(len(rows) for solutions in self._ops.values() for rows in solutions.values())

    @cached_property
    def places(self) -> dict[tuple[str, str, str], int]:
        """Everyone's place, by op, track and solution."""
        return {
            (op, track, name): place
            for op, solutions in self._ops.items()
            for track, found in self._scores(op, solutions)
            for name, place in zip(found, numbers(list(found.values())), strict=True)
        }

    def best(self, share: float) -> set[str]:
        """Return the peers, and the best share of each op's solutions."""
        found, order = set(self._peers), self._order()
        for op in set(self.names.values()):
            names = [name for name in order if self.names[name] == op]
            found.update(names[: math.ceil(share * len(names))])
        return found

    def read(self, names: Container[str], always: Iterable[str] = ()) -> Results:
        """Return these solutions' records, with everyone's places; `always` does not count."""
        ops = set(self.names.values())
        eager = (f"eager/{op}" for op in ops)  # counted in every run, even where it has no row
        shown = (name for name in self.names if name in names)
        found = self._outline.read({*shown, *eager, *always})
        unshown = {op: line for op in ops if (line := self._line(op, names))}
        return replace(found, places=self.places, unshown=unshown)

    def _add(self, row: Row) -> None:
        named: Cell = (row.case, row.direction)
        cell, times = self._cells.setdefault(named, named), row.times
        passed = times if row.verdict == "PASSED" else None
        rows = self._ops[row.op].setdefault(row.solution, {})
        rows[cell] = sys.intern(row.track), row.clock if times else 0, passed
        if row.peer:
            self._peers.add(row.solution)

    def _scores(
        self, op: str, solutions: Mapping[str, Rows]
    ) -> Iterator[tuple[str, dict[str, Score]]]:
        """Yield each track's scores, the best first; see `ranking.rank`."""
        counting = {row.case for row in self.results.latest() if row.op == op}
        clocks: dict[str, dict[Cell, int]] = defaultdict(dict)
        for rows in solutions.values():
            for cell, (track, clock, _) in rows.items():
                if cell[0] in counting and clock >= clocks[track].get(cell, 0):
                    clocks[track][cell] = clock
        for track, cells in clocks.items():
            clock = max(cells.values())
            pairs = {name: _pairs(rows, cells, track, clock) for name, rows in solutions.items()}
            whole = {name: each for name, each in pairs.items() if len(each) == len(cells)}
            scored = zip(whole, scores(list(whole.values())), strict=True)
            yield track, dict(sorted(scored, key=lambda each: -each[1].value))

    def _order(self) -> list[str]:
        """Return the contributors' solutions by their best place in any track, then by coverage."""
        best = dict.fromkeys(self.names, math.inf)
        for (_, _, name), place in self.places.items():
            best[name] = min(best[name], place)
        passed: dict[str, int] = defaultdict(int)
        for solutions in self._ops.values():
            for name, rows in solutions.items():
                passed[name] += sum(bool(times) for _, _, times in rows.values())
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


def _pairs(rows: Rows, cells: Iterable[Cell], track: str, clock: int) -> list[Pair]:
    """Return the times of the track's cells that the solution passed, by this clock."""
    found = [rows[cell] for cell in cells if cell in rows]
    return [times for of, by, times in found if times and of == track and by == clock]


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
        fields, devices, everyone = _first(known)
        size = sum(each.size for each in fields)
        share = 1.0 if size <= WHOLE else BEST / size
        names = set().union(*(each.best(share) for each in fields))
        boards = [each.read(names, always) for each in fields]
    return Drawn(boards, everyone - names, devices - len(fields))


def _first(known: Container[str]) -> tuple[list[Field], int, set[str]]:
    """Return the first devices in the order of boards, the number of all, and their solutions."""
    kept: dict[Path, Field] = {}
    devices, everyone = 0, set[str]()
    for folder in sorted(paths.RESULTS.glob("*/")):
        field = Field(folder, known)
        if field.results.rows:
            devices += 1
            everyone |= field.names.keys()
            kept[field.results.path] = field
            first = ordered(each.results for each in kept.values())[:DEVICES]
            kept = {each.path: kept[each.path] for each in first}
    return list(kept.values()), devices, everyone
