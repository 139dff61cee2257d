"""Rank boards from records, as pure functions: the same records always give the same boards.

The score of a track is the geometric mean, over its cases and directions, of eager's median time
over the solution's median time in the same run. The score's interval combines the intervals of the
rows in quadrature on the log scale. An entry ties with the leader of its group if its interval
overlaps the leader's: with scores 2.0 ± 0.1, 1.9 ± 0.1 and 1.8 ± 0.1, two entries are first and one
is third.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from common import interfaces, stats
from common.records.lines import Influences, Record, Summary

LIMITS = {"copy": "copy of the same bytes", "dense": "dense products of the same shapes"}
APART: Mapping[str, float] = {"gpu": 0.05, "host": 0.25}
"""The largest relative deviation of eager's time from its median in a run, by clock."""
FEWEST_ROWS = 3
"""The fewest rows of a case that can show a deviating row."""
EAGER_APART = "eager's time apart from the run's other rows"
TRACKS = {op: interface.tracks for op, interface in interfaces.known().items()}
"""The tracks of each op, both in the order of boards; others follow by name."""
Cell = tuple[str, str]
"""A case and a direction."""
Key = tuple[str, str, str, str]
"""`Record.key`, which is unique among the ranked rows."""


@dataclass(frozen=True)
class About:
    """The facts of a solution that come from its source, which is read as text and not run."""

    note: str = ""
    digest: str = ""
    """Empty for a solution without a source in this tree."""


@dataclass(frozen=True)
class Estimate:
    """A value with its 95 % interval: a speed in units of eager's speed, a time or a rate."""

    value: float
    low: float
    high: float

    @classmethod
    def of(cls, time: Summary, factor: float = 1.0) -> Estimate:
        """Return a time in microseconds multiplied by `factor`."""
        return cls(time.median * factor, time.low * factor, time.high * factor)

    def rate(self, amount: float) -> Estimate:
        """Return the amount divided by this time."""
        return Estimate(amount / self.value, amount / self.high, amount / self.low)

    @property
    def half_interval(self) -> float:
        """Return the wider half of the interval, which may be asymmetric."""
        return max(self.high - self.value, self.value - self.low)


@dataclass(frozen=True)
class Entry:
    """One solution in one track."""

    solution: str
    peer: bool
    about: About
    cells: Mapping[Cell, Record]
    missing: tuple[Cell, ...]
    """The track's cells that the solution did not pass, or that an earlier clock measured."""
    apart: frozenset[Cell]
    """The cells whose eager time deviates from the run's other rows; see `_eager_apart`."""
    score: Estimate | None
    rank: int | None = None

    @property
    def handle(self) -> str:
        """Return the name of the solution's folder."""
        return self.solution.partition("/")[0]

    @property
    def stale(self) -> bool:
        """Return whether a row was measured before the solution's source last changed."""
        digest = self.about.digest
        return bool(digest) and any(row.sources != digest for row in self.cells.values())

    @cached_property
    def disturbed(self) -> dict[Cell, Influences]:
        """Return the cells with disturbed times, with the influences on the times."""
        by_cell = {cell: row.disturbed for cell, row in self.cells.items()}
        for cell in self.apart:
            by_cell[cell].setdefault(self.cells[cell].ranked_by, []).append(EAGER_APART)
        return {cell: influences for cell, influences in by_cell.items() if influences}

    @property
    def covered(self) -> int:
        """Return the number of cells that the solution passed."""
        return len(self.cells) - sum(cell in self.cells for cell in self.missing)

    @property
    def error(self) -> float | None:
        """Return the largest error of any cell, in units of eager's own error."""
        errors = (row.error for row in self.cells.values() if row.error is not None)
        return max(errors, default=None)

    @property
    def peak_memory(self) -> int | None:
        """Return the largest peak memory of any cell in bytes; None if no row has a peak."""
        peaks = (row.peak_memory for row in self.cells.values() if row.peak_memory is not None)
        return max(peaks, default=None)

    @property
    def in_loop(self) -> float | None:
        """Return the speed of calls in a loop, in units of eager's: the mean over the cells.

        None for an entry that does not cover the track or has no cell timed in a loop.
        """
        known = [row.sustained for row in self.cells.values() if row.sustained]
        if self.missing or not known:
            return None
        return statistics.geometric_mean(times["eager"] / times["solution"] for times in known)

    @property
    def outdated(self) -> bool:
        """Return whether an earlier clock measured a cell of the track."""
        return any(self.cells[c].verdict == "PASSED" for c in self.missing if c in self.cells)

    @cached_property
    def worst_share(self) -> Record | None:
        """Return the row with the smallest share of its limit."""
        timed = [row for row in self.cells.values() if row.gpu and row.ranked_by == "gpu"]
        return min(timed, key=share, default=None)

    @property
    def lacks(self) -> str:
        """Return why the entry is not ranked: its first failure or its first missing cell."""
        failures = [row for row in self.cells.values() if not row.fine]
        rows = failures or [self.cells[cell] for cell in self.missing if cell in self.cells]
        if not rows:
            untimed = [row.reason for row in self.cells.values() if row.reason]
            return "not measured yet" if self.missing else (untimed or [""])[0]
        row = rows[0]
        if row.verdict == "PASSED":
            return "measured by an earlier version of the clock; run bench again"
        more = f", and {len(self.missing) - 1} more" if len(self.missing) > 1 else ""
        return f"{row.verdict}: {row.reason} ({row.case} {row.direction}{more})"


@dataclass(frozen=True)
class Track:
    """One table of the leaderboard."""

    op: str
    name: str
    cells: tuple[Cell, ...]
    entries: tuple[Entry, ...]
    """The ranked entries, followed by those that do not cover the track."""
    clock: int
    """The version of the clock that measured the ranked entries; 0 where nothing was timed."""
    timed: bool = True
    """Whether the device ranks entries, by measured or by modelled times."""

    @property
    def title(self) -> str:
        """Return the op and the name: `rope: core`."""
        return f"{self.op}: {self.name}"

    @property
    def directions(self) -> list[str]:
        """The directions that the track ranks."""
        return list(dict.fromkeys(direction for _, direction in self.cells))

    @property
    def top(self) -> float:
        """The greatest speed of any interval; 0 without a speed."""
        return max((entry.score.high for entry in self.entries if entry.score), default=0.0)

    def entry(self, solution: str) -> Entry | None:
        """Return the solution's entry, if it has one."""
        return next((entry for entry in self.entries if entry.solution == solution), None)

    def row(self, entry: Entry, cell: Cell) -> Record | None:
        """Return the entry's row; None without a row or where another clock measured the row."""
        row = entry.cells.get(cell)
        return row if row and (row.clock == self.clock or not row.gpu) else None


def op_order(op: str) -> tuple[int, str]:
    """Return a sort key that puts ops in the order of boards; an op without a file comes last."""
    return ([*TRACKS].index(op) if op in TRACKS else len(TRACKS), op)


def rank(
    rows: Iterable[Record], about: Mapping[str, About] | None = None, timed: bool = True
) -> list[Track]:
    """Return every track of every op in the order of boards, from the latest rows.

    A track's cells have the order of the rows.

    Args:
        rows: The latest rows.
        about: The facts of the solutions, which show stale entries; by default they are unknown.
        timed: Whether the device ranks entries.
    """
    rows = list(rows)
    apart = _eager_apart(rows)
    by_track: dict[tuple[str, str], list[Record]] = defaultdict(list)
    for row in rows:
        by_track[row.op, row.track].append(row)
    tracks = []
    for (op, name), of_track in sorted(by_track.items(), key=lambda item: _place(*item[0])):
        cells = tuple(dict.fromkeys((row.case, row.direction) for row in of_track))
        clock = max((row.clock for row in of_track if row.gpu), default=0)
        solutions: dict[str, dict[Cell, Record]] = defaultdict(dict)
        for row in of_track:
            solutions[row.solution][row.case, row.direction] = row
        entries = [
            _entry(own, cells, clock, (about or {}).get(solution, About()), apart)
            for solution, own in solutions.items()
        ]
        tracks.append(Track(op, name, cells, _ordered(entries), clock, timed))
    return tracks


def _place(op: str, track: str) -> tuple[tuple[int, str], int, str]:
    stated = TRACKS.get(op, ())
    return op_order(op), stated.index(track) if track in stated else len(stated), track


def _entry(
    rows: Mapping[Cell, Record], cells: Iterable[Cell], clock: int, about: About, apart: Set[Key]
) -> Entry:
    """Return an entry without a rank; rows of an earlier clock do not count."""

    def counts(row: Record | None) -> bool:
        return bool(row and row.verdict == "PASSED" and (row.clock == clock or not row.gpu))

    first = next(iter(rows.values()))
    missing = tuple(cell for cell in cells if not counts(rows.get(cell)))
    ranked = not missing and all(row.gpu for row in rows.values())
    score = combined([ranked_times(rows[cell]) for cell in cells]) if ranked else None
    disturbed = frozenset(cell for cell, row in rows.items() if row.key in apart)
    return Entry(first.solution, first.peer, about, rows, missing, disturbed, score)


def _ordered(entries: Iterable[Entry]) -> tuple[Entry, ...]:
    """Return the entries with a score by their places, then the others."""
    scores = [(entry, entry.score) for entry in entries if entry.score]
    scores.sort(key=lambda pair: -pair[1].value)
    # an entry whose interval overlaps a leader's interval shares the leader's place
    leaders = stats.leaders([(score.low, score.high) for _, score in scores])
    ranked = [
        replace(entry, rank=leader + 1) for (entry, _), leader in zip(scores, leaders, strict=True)
    ]
    others = sorted(
        (entry for entry in entries if not entry.score),
        key=lambda entry: (-entry.covered, entry.peer, entry.solution),
    )
    return (*ranked, *others)


def _eager_apart(rows: Iterable[Record]) -> set[Key]:
    """Return the keys of the rows whose eager time deviates from the run's other rows.

    Eager's time of a case depends only on the machine, so that a deviating row was disturbed.
    """
    groups: dict[tuple[str, ...], list[Record]] = defaultdict(list)
    for row in rows:
        if row.gpu:
            groups[row.run, row.tier, row.op, row.case, row.direction].append(row)
    deviating = set()
    for group in groups.values():
        median_time = statistics.median([median(row, "eager") for row in group])
        for row in group if len(group) >= FEWEST_ROWS else ():
            if abs(median(row, "eager") / median_time - 1) > APART[row.ranked_by]:
                deviating.add(row.key)
    return deviating


def combined(times: Sequence[Mapping[str, Summary]]) -> Estimate:
    """Return the score of the times of the `solution` and of `eager` in each cell.

    The times are independent, so that the variances of the logarithms add. A median's interval may
    be asymmetric, so that the lower and the upper sides are combined separately.
    """
    numbers = [
        (each.median, each.low, each.high)
        for of_cell in times
        for each in (of_cell["solution"], of_cell["eager"])
    ]
    solution, low, high, eager, eager_low, eager_high = np.log(np.reshape(numbers, (-1, 6))).T
    ratio = (eager - solution).mean()
    above = np.sqrt(((eager_high - eager) ** 2 + (solution - low) ** 2).sum()) / len(times)
    below = np.sqrt(((eager - eager_low) ** 2 + (high - solution) ** 2).sum()) / len(times)
    return Estimate(*np.exp([ratio, ratio - below, ratio + above]).tolist())


# --- of one row -----------------------------------------------------------------------------------


def ranked_times(row: Record) -> Mapping[str, Summary]:
    """Return the times of the clock that ranks the row, the GPU's or the host's."""
    return row.host if row.ranked_by == "host" else row.gpu


def median(row: Record, name: str = "solution") -> float:
    """Return a median in microseconds by the clock that ranks the row."""
    return ranked_times(row)[name].median


def limit(row: Record) -> tuple[float, str]:
    """Return the median microseconds and the name of the slower limit.

    The limits are a copy of the same bytes and, in some rows, dense products of the same shapes. A
    call can hardly take less time than the slower limit.
    """
    return max((row.gpu[name].median, name) for name in LIMITS if name in row.gpu)


def share(row: Record) -> float:
    """Return the row's share of its limit, by GPU time."""
    return limit(row)[0] / row.gpu["solution"].median


def sustained_share(row: Record) -> float | None:
    """Return the row's share of dense products, both in a sustained loop; None without the loop."""
    known = row.sustained
    return known["dense"] / known["solution"] if "dense" in known else None
