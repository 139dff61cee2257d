"""The latest two runs of an op side by side: does its board come out the same? Pure, as ranking is.

Only what both measured is compared, so that the scores of either are over the same cases.
"""

from __future__ import annotations

import itertools
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass

from common.board.ranking import Entry, Track, median, rank, ratio
from common.records.runs import Record, Results, Run

STEADY = 0.03
SHORT = 20.0
"""Microseconds: of a shorter time the clock's own noise is too large a part."""
Rows = Mapping[tuple[str, ...], Record]


@dataclass(frozen=True)
class Move:
    """One case and direction of one solution in both runs; the numbers are there where either was
    timed."""

    earlier: Record
    later: Record

    @property
    def change(self) -> float:
        """Of the ratio to eager; 0.03 is three per cent faster than before."""
        return ratio(self.later) / ratio(self.earlier) - 1

    @property
    def size(self) -> float:
        return abs(self.change)

    @property
    def short(self) -> bool:
        return min(median(self.earlier), median(self.later)) < SHORT


@dataclass(frozen=True)
class Pair:
    """One solution in one track of both runs, over the same cases."""

    earlier: Entry
    later: Entry

    @property
    def rows(self) -> list[Move]:
        return [Move(self.earlier.cells[cell], row) for cell, row in self.later.cells.items()]

    @property
    def moves(self) -> list[Move]:
        return [row for row in self.rows if row.earlier.gpu and row.later.gpu]

    @property
    def change(self) -> float | None:
        """Of the score."""
        if self.earlier.score is None or self.later.score is None:
            return None
        return self.later.score.value / self.earlier.score.value - 1

    @property
    def edited(self) -> bool:
        """Its sources differ, so that what moved may be what they changed."""
        return any(row.earlier.sources != row.later.sources for row in self.rows)


@dataclass(frozen=True)
class Both:
    """One track of both runs, in the later one's order."""

    op: str
    name: str
    pairs: tuple[Pair, ...]

    @property
    def moves(self) -> list[Move]:
        return [move for pair in self.pairs for move in pair.moves]

    @property
    def verdicts(self) -> list[Move]:
        """Who fared otherwise than before."""
        rows = [row for pair in self.pairs for row in pair.rows]
        return [row for row in rows if row.earlier.verdict != row.later.verdict]

    @property
    def swapped(self) -> list[tuple[Pair, Pair]]:
        """Who changed places, though the intervals of the two are apart in either run; the one
        that is now ahead first."""
        scored = [pair for pair in self.pairs if pair.change is not None]
        return [
            (one, other)
            for one, other in itertools.combinations(scored, 2)
            if _apart(one.later, other.later) and _apart(other.earlier, one.earlier)
        ]


@dataclass(frozen=True)
class Comparison:
    """What is known of whether an op's board comes out the same."""

    op: str
    earlier: Run
    later: Run
    harness: bool
    """The op, or what grades and times, is another."""
    tracks: tuple[Both, ...]

    @property
    def changed(self) -> list[str]:
        """What else than the solutions is not as it was."""
        old, new = self.earlier.versions, self.later.versions
        versions = [f"{name} from {old[name]} to {new[name]}"
                    for name in old if name in new and old[name] != new[name]]  # fmt: skip
        return ["the harness"] * self.harness + versions


def compare(results: Results, known: Container[str]) -> list[Comparison]:
    """The board of each op that two finished runs measured, of the solutions that are known: the
    latest such run, and the last before it that measured any of the same."""
    finished = [run for run in results.runs if run.run in results.finished]
    names = {run.run for run in finished}
    ours = [row for row in results.rows
            if row.tier == "board" and row.run in names and row.solution in known]  # fmt: skip
    found = []
    for op in sorted({row.op for row in ours}):
        measured = [(run, rows) for run in finished if (rows := _rows(ours, op, run))]
        later, new = measured.pop()
        before = [(run, rows) for run, rows in measured if rows.keys() & new.keys()]
        if before:
            found.append(_compared(op, *before[-1], later, new))
    return found


def _rows(rows: Iterable[Record], op: str, run: Run) -> Rows:
    """By all in which two rows have to agree to be held against each other."""
    ours = [row for row in rows if (row.op, row.run) == (op, run.run)]
    return {(*row.key, row.track, row.ranked_by): row for row in ours}


def _compared(op: str, earlier: Run, old: Rows, later: Run, new: Rows) -> Comparison:
    shared = [key for key in new if key in old]
    before, after = rank(old[key] for key in shared), rank(new[key] for key in shared)
    harness = any(old[key].harness != new[key].harness for key in shared)
    tracks = tuple(_both(*tracks) for tracks in zip(before, after, strict=True))
    return Comparison(op, earlier, later, harness, tracks)


def _both(before: Track, after: Track) -> Both:
    entries = {entry.solution: entry for entry in before.entries}
    pairs = tuple(Pair(entries[entry.solution], entry) for entry in after.entries)
    return Both(after.op, after.name, pairs)


def _apart(ahead: Entry, behind: Entry) -> bool:
    return bool(ahead.score and behind.score and ahead.score.low > behind.score.high)
