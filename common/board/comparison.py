"""Compare the latest two runs of an op, to see whether its board repeats; pure functions.

The comparison uses only the cells that both runs measured, so that both scores are over the same
cases.
"""

from __future__ import annotations

import itertools
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass

from common.board.ranking import Entry, Track, median, rank, ratio
from common.board.table import EDITED, Table, named, speed, where
from common.records.lines import Record, Run
from common.records.runs import Results

STEADY = 0.03
"""The largest relative change of a steady row."""
SHORT = 20.0
"""Microseconds below which the clock's noise is too large a share of a time."""
Rows = dict[tuple[str, ...], Record]


@dataclass(frozen=True)
class Move:
    """One case and direction of a solution in both runs.

    `change` and `short` require that both rows are timed.
    """

    earlier: Record
    later: Record

    @property
    def change(self) -> float:
        """Return the relative change of the speed: 0.03 is three per cent faster than before."""
        return ratio(self.later) / ratio(self.earlier) - 1

    @property
    def short(self) -> bool:
        """Return whether either time is too short to compare."""
        return min(median(self.earlier), median(self.later)) < SHORT


@dataclass(frozen=True)
class TrackComparison:
    """A solution in one track of both runs, over the same cases."""

    earlier: Entry
    later: Entry

    @property
    def rows(self) -> list[Move]:
        """Return every cell of the track."""
        return [Move(self.earlier.cells[cell], row) for cell, row in self.later.cells.items()]

    @property
    def moves(self) -> list[Move]:
        """Return the cells that both runs timed."""
        return [row for row in self.rows if row.earlier.gpu and row.later.gpu]

    @property
    def change(self) -> float | None:
        """Return the relative change of the score; None where either run has no score."""
        if self.earlier.score is None or self.later.score is None:
            return None
        return self.later.score.value / self.earlier.score.value - 1

    @property
    def edited(self) -> bool:
        """Return whether the solution's sources changed, which may explain changed times."""
        return any(row.earlier.sources != row.later.sources for row in self.rows)


@dataclass(frozen=True)
class Both:
    """One track of both runs, in the later run's order."""

    op: str
    name: str
    pairs: tuple[TrackComparison, ...]

    @property
    def moves(self) -> list[Move]:
        """Return the cells of all solutions that both runs timed."""
        return [move for pair in self.pairs for move in pair.moves]

    @property
    def verdicts(self) -> list[Move]:
        """Return the cells whose verdict changed."""
        rows = [row for pair in self.pairs for row in pair.rows]
        return [row for row in rows if row.earlier.verdict != row.later.verdict]

    @property
    def swapped(self) -> list[tuple[TrackComparison, TrackComparison]]:
        """Return the pairs that changed places although their intervals are disjoint in both runs.

        The first solution of a pair is the faster one in the later run.
        """
        scored = [pair for pair in self.pairs if pair.change is not None]
        return [
            (one, other)
            for one, other in itertools.combinations(scored, 2)
            if _apart(one.later, other.later) and _apart(other.earlier, one.earlier)
        ]


@dataclass(frozen=True)
class Comparison:
    """Both runs of one op."""

    op: str
    earlier: Run
    later: Run
    harness: bool
    """Whether the op or the code that grades and times changed."""
    clock: bool
    """Whether the version of the clock changed."""
    tracks: tuple[Both, ...]

    @property
    def changed(self) -> list[str]:
        """Return descriptions of the changes other than changes of solutions."""
        old, new = self.earlier.versions, self.later.versions
        versions = [f"{name} from {old[name]} to {new[name]}"
                    for name in old if name in new and old[name] != new[name]]  # fmt: skip
        parts = ["the harness"] * self.harness + ["the version of the clock"] * self.clock
        return parts + versions


def compare(results: Results, known: Container[str]) -> list[Comparison]:
    """Return a comparison of the known solutions for each op that two finished runs measured.

    The runs are the latest run, and the last earlier run that shares a cell with the latest run.
    """
    measured: dict[str, dict[str, Rows]] = {}
    for row in results.rows:
        if row.tier == "board" and row.run in results.finished and row.solution in known:
            key = (*row.key, row.track, row.ranked_by)  # the same in two compared rows
            measured.setdefault(row.op, {}).setdefault(row.run, {})[key] = row
    comparisons = (_latest_two(op, results.runs, measured[op]) for op in sorted(measured))
    return [comparison for comparison in comparisons if comparison]


def _latest_two(op: str, runs: Iterable[Run], measured: Mapping[str, Rows]) -> Comparison | None:
    """Compare the latest run with the last earlier run that shares a cell, if there is one."""
    later, *before = [run for run in runs if run.run in measured][::-1]
    new = measured[later.run]
    for earlier in before:
        old = measured[earlier.run]
        if shared := [(old[key], new[key]) for key in new if key in old]:
            before_tracks, after_tracks = (
                rank(row for row, _ in shared),
                rank(row for _, row in shared),
            )
            return Comparison(
                op,
                earlier,
                later,
                harness=any(row.harness != newer.harness for row, newer in shared),
                clock=any(row.clock != newer.clock for row, newer in shared),
                tracks=tuple(map(_both, before_tracks, after_tracks)),
            )
    return None


def _both(before: Track, after: Track) -> Both:
    entries = {entry.solution: entry for entry in before.entries}
    pairs = tuple(TrackComparison(entries[entry.solution], entry) for entry in after.entries)
    return Both(after.op, after.name, pairs)


def _apart(ahead: Entry, behind: Entry) -> bool:
    return bool(ahead.score and behind.score and ahead.score.low > behind.score.high)


# --- a comparison's table -------------------------------------------------------------------------


def table_of(both: Both) -> Table:
    """Return a row for each solution: its score in both runs, and its largest move."""
    header = ("solution", "earlier", "later", "change", "largest move", "of its cases")
    pairs = [pair for pair in both.pairs if pair.moves]
    notes = [_steadiness(both.moves), *_order(both), *_verdicts(both.verdicts)]
    if any(pair.edited for pair in pairs):
        notes.append(f"{EDITED} its source changed between the runs: this may be what it changed")
    title = f"{both.op}: {both.name}"
    return Table(title, header, tuple(map(_line, pairs)), tuple(notes))


def _line(pair: TrackComparison) -> tuple[str, ...]:
    change = "–" if pair.change is None else f"{pair.change:+.1%}"
    furthest = max(pair.moves, key=lambda move: abs(move.change))
    name = named(pair.later) + EDITED * pair.edited
    scores = (speed(pair.earlier), speed(pair.later))
    return name, *scores, change, f"{furthest.change:+.1%}", where(furthest.later)


def _steadiness(moves: Sequence[Move]) -> str:
    """Return a footnote on the share of steady rows among the rows that are long enough."""
    long = [move for move in moves if not move.short]
    short = len(moves) - len(long)
    shorter = f"; shorter, and not counted: {short}" if short else ""
    if not long:
        return f"no row of a case above {SHORT:g} µs was timed in both runs{shorter}"
    steady = sum(abs(move.change) <= STEADY for move in long)
    furthest = max(long, key=lambda move: abs(move.change))
    return (
        f"{steady} of {len(long)} rows of cases above {SHORT:g} µs moved by no more than"
        f" {100 * STEADY:g} %; the largest moved by {100 * abs(furthest.change):.1f} %"
        f" ({_full(furthest.later)}){shorter}"
    )


def _order(both: Both) -> list[str]:
    scored = [pair for pair in both.pairs if pair.change is not None]
    if not both.swapped:
        return ["the order is the same but for ties"] * (len(scored) > 1)
    pairs = (f"{ahead.later.solution} and {behind.later.solution}"
             for ahead, behind in both.swapped)  # fmt: skip
    return [f"swapped, although their intervals are apart: {', '.join(pairs)}"]


def _verdicts(changed: Sequence[Move]) -> list[str]:
    return [
        f"{_full(move.later)}: {move.earlier.verdict}, then {move.later.verdict}"
        for move in changed
    ]


def _full(row: Record) -> str:
    return f"{row.solution} {row.case} {row.direction}"
