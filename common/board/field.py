"""The solutions that a board draws: all of a group's; the best of thousands, with their places.

Every solution of a device is ranked, from the outline of its rows; those that are drawn are read in
full. A group of 50 solutions with 22 rows each on 3 GPUs is drawn whole; of 2,500 solutions of each
of four ops with 70 rows each, the best 8 of each op.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from common import paths
from common.board.devices import newest
from common.board.scores import ranked
from common.records import runs
from common.records.fields import timing
from common.records.outline import Floats, Integers, Outline, outlines
from common.records.runs import Results

WHOLE, BEST = 5_000, 2_000
"""Rows of the board's tier, of all devices together: so many are all drawn, of more so many."""
DEVICES = 8
"""The most devices that are drawn: each takes a second of its plots and of the page."""


class Field:
    """Everyone on a device, as far as the board's tier ranks them."""

    def __init__(self, outline: Outline, known: Container[str]) -> None:
        """Take the latest rows of the solutions that are known, those in this tree."""
        self.outline = outline
        self._everyone = list(outline.names)
        self._cells = list(outline.cells)
        latest = _latest(outline, known)
        self._solutions = outline.rows.solutions[latest]
        self._of_cells = outline.rows.cells[latest]
        self._timings = outline.rows.timings[latest]

    @cached_property
    def names(self) -> dict[str, str]:
        """The op of each solution that has a row."""
        _, first = np.unique(self._solutions, return_index=True)
        return {
            self._everyone[self._solutions[row]]: self._cells[self._of_cells[row]][0]
            for row in first.tolist()
        }

    @property
    def size(self) -> int:
        """The rows that the board's tier would show of everyone."""
        return len(self._solutions)

    @cached_property
    def places(self) -> dict[tuple[str, str, str], int]:
        """Everyone's place, by op, track and solution."""
        return {
            (op, track, self._everyone[solutions[number]]): place
            for op, track, solutions, timings in self._tracks()
            for number, (_, place) in ranked(timings).items()
        }

    def best(self, share: float) -> set[str]:
        """Return the peers, and the best share of each op's solutions."""
        found, order = self.names.keys() & self.outline.peers, self._order()
        for op in set(self.names.values()):
            names = [name for name in order if self.names[name] == op]
            found.update(names[: math.ceil(share * len(names))])
        return found

    def read(self, names: Container[str], always: Iterable[str] = ()) -> Results:
        """Return these solutions' records, with everyone's places; `always` does not count."""
        ops = set(self.names.values())
        eager = (f"eager/{op}" for op in ops)  # counted in every run, even where it has no row
        shown = (name for name in self.names if name in names)
        found = self.outline.read({*shown, *eager, *always})
        unshown = {op: line for op in ops if (line := self._line(op, names))}
        return replace(found, places=self.places, unshown=unshown)

    def _tracks(self) -> Iterator[tuple[str, str, Integers, Floats]]:
        """Yield each track with its solutions and their timings by case; see `ranking.rank`."""
        counting = {(row.op, row.case) for row in self.outline.read(()).latest()}
        tracks: dict[tuple[str, str], list[int]] = defaultdict(list)
        for number in np.unique(self._of_cells).tolist():
            op, track, case, _ = self._cells[number]
            if (op, case) in counting:
                tracks[op, track].append(number)
        for (op, track), cells in tracks.items():
            rows = np.flatnonzero(np.isin(self._of_cells, cells))
            solutions, lines = np.unique(self._solutions[rows], return_inverse=True)
            timings = np.tile(timing(), (len(solutions), len(cells), 1))
            timings[lines, np.searchsorted(cells, self._of_cells[rows])] = self._timings[rows]
            yield op, track, solutions, timings

    def _order(self) -> list[str]:
        """Return the contributors' solutions by their best place in any track, then by coverage."""
        best = dict.fromkeys(self.names, math.inf)
        for (_, _, name), place in self.places.items():
            best[name] = min(best[name], place)
        timed = self._solutions[~np.isnan(self._timings[:, 1])]
        passed = np.bincount(timed, minlength=len(self._everyone)).tolist()
        return sorted(
            self.names.keys() - self.outline.peers,
            key=lambda name: (best[name], -passed[self.outline.names[name]], name),
        )

    def _line(self, op: str, names: Container[str]) -> str:
        """Return a line on the solutions that are not drawn, if there are any."""
        everyone = [name for name, of in self.names.items() if of == op]
        if (number := sum(name in names for name in everyone)) == len(everyone):
            return ""
        shown = f"Shown: {number:,} of {len(everyone):,} solutions, with their places among all"
        return f"{shown}; on the page, a single case or direction ranks these alone."


def _latest(outline: Outline, known: Container[str]) -> Integers:
    """Return the last row of each known solution, case and direction, whatever its track."""
    spots: dict[tuple[str, str, str], int] = {}
    spot = [spots.setdefault((op, case, way), len(spots)) for op, _, case, way in outline.cells]
    ours = np.array([name in known for name in outline.names], dtype=bool)
    rows = np.flatnonzero(ours[outline.rows.solutions])
    solutions, cells = outline.rows.solutions[rows], outline.rows.cells[rows]
    keys = solutions.astype(np.int64) * len(spots) + np.array(spot, dtype=np.int64)[cells]
    _, from_the_end = np.unique(keys[::-1], return_index=True)
    latest: Integers = np.sort(rows[len(rows) - 1 - from_the_end])
    return latest


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
    first: list[tuple[tuple[bool, int, str], Outline]] = []
    devices, everyone = 0, set[str]()
    for outline in outlines(sorted(paths.RESULTS.glob("*/"))):
        gist = outline.gist()
        if gist.rows:
            devices += 1
            everyone |= outline.ranked
            first.append((newest(gist), outline))
            first = sorted(first, key=lambda each: each[0], reverse=True)[:DEVICES]
    return [Field(outline, known) for _, outline in first], devices, everyone
