"""Ranked boards from records; pure: the same records always give the same boards.

The score of a track is the geometric mean, over its cases and directions, of eager's median time
over the solution's, both taken in the same run. Its interval combines the intervals of the rows in
quadrature on the log scale. An entry ties with the leader of its group if its interval reaches the
leader's: with scores 2.0 ± 0.1, 1.9 ± 0.1 and 1.8 ± 0.1, two entries are first and one is third.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from common import interfaces, stats
from common.records.lines import Influences, Record, Summary

LIMITS = {"copy": "copy of the same bytes", "dense": "dense products of the same shapes"}
APART: Mapping[str, float] = {"gpu": 0.05, "host": 0.25}
"""The share by which eager's time may differ from its median over a run, by the clock."""
FEW = 3
"""Fewer rows of a case do not tell which one is apart."""
EAGER_APART = "eager's time apart from the run's other rows"
TRACKS = {op: each.tracks for op, each in interfaces.known().items()}
"""The tracks of each op in the order that its file states; any other follows by name."""
Cell = tuple[str, str]
"""A case and a direction."""
TimePair = tuple[Summary, Summary]
"""The solution's time and eager's."""


@dataclass(frozen=True)
class Estimate:
    """A value with its 95 % interval: a speed in units of eager's, a time or a rate."""

    value: float
    low: float
    high: float

    @classmethod
    def of(cls, time: Summary, factor: float = 1.0) -> Estimate:
        """Return a time in microseconds, in a unit that `factor` converts to."""
        return cls(time.median * factor, time.low * factor, time.high * factor)

    def rate(self, amount: float) -> Estimate:
        """Return the rate of an amount in that time."""
        return Estimate(amount / self.value, amount / self.high, amount / self.low)


@dataclass(frozen=True)
class Entry:
    """One solution in one track."""

    solution: str
    peer: bool
    cells: dict[Cell, Record]
    missing: tuple[Cell, ...]
    """The track's cells that the solution did not pass, or that an earlier clock measured."""
    score: Estimate | None = None
    rank: int | None = None
    apart: frozenset[Cell] = frozenset()
    """The cells in which eager's time is not that of the run's other rows; see `eager_apart`."""
    silent: bool = False
    """Whether the solution answers no case of the op, in any track."""

    @cached_property
    def disturbed(self) -> dict[Cell, Influences]:
        """Return the cells whose times something else influenced, with the influences."""
        found = {cell: row.disturbed for cell, row in self.cells.items()}
        for cell in self.apart:
            found[cell].setdefault(self.cells[cell].ranked_by, []).append(EAGER_APART)
        return {cell: influences for cell, influences in found.items() if influences}

    @property
    def covered(self) -> int:
        """Return how many cells the solution passed."""
        return len(self.cells) - sum(cell in self.cells for cell in self.missing)

    @property
    def error(self) -> float | None:
        """Return the largest error of any cell, in units of eager's own."""
        errors = [row.error for row in self.cells.values() if row.error is not None]
        return max(errors, default=None)

    @property
    def peak_memory(self) -> int | None:
        """Return the most bytes that any cell took; None where no row tells."""
        known = [row.peak_memory for row in self.cells.values() if row.peak_memory is not None]
        return max(known, default=None)

    @property
    def in_loop(self) -> float | None:
        """Return how many times as fast as eager calls in a loop are: the mean of cells so timed.

        None for an entry that does not cover the track.
        """
        known = [row.sustained for row in self.cells.values() if row.sustained]
        if self.missing or not known:
            return None
        return statistics.geometric_mean(each["eager"] / each["solution"] for each in known)

    @property
    def outdated(self) -> bool:
        """Return whether an earlier clock measured a cell of the track."""
        return any(self.cells[c].verdict == "PASSED" for c in self.missing if c in self.cells)

    @cached_property
    def worst_share(self) -> Record | None:
        """Return the row that is furthest from its limit."""
        timed = [row for row in self.cells.values() if row.gpu and row.ranked_by == "gpu"]
        return min(timed, key=share, default=None)

    @property
    def failures(self) -> list[Record]:
        """Return the rows that neither passed nor are unsupported."""
        return [r for r in self.cells.values() if not r.fine]

    @property
    def lacks(self) -> str:
        """Return why the entry is not ranked: its first failure, else its first missing cell."""
        rows = self.failures or [self.cells[c] for c in self.missing if c in self.cells]
        if not rows:
            untimed = [row.reason for row in self.cells.values() if row.reason]
            return "not measured yet" if self.missing else (untimed or [""])[0]
        row = rows[0]
        if row.verdict == "PASSED":
            return "measured by an earlier version of the clock"
        if self.silent:
            return f"answers no case: {row.reason}"
        more = f", and {len(self.missing) - 1} more" if len(self.missing) > 1 else ""
        return f"{row.verdict}: {row.reason} ({row.case} {row.direction}{more})"


@dataclass(frozen=True)
class Track:
    """One table of the leaderboard."""

    op: str
    name: str
    cells: tuple[Cell, ...]
    entries: tuple[Entry, ...] = field(default_factory=tuple)
    clock: int = 0
    """The version of the clock that measured the ranked entries; 0 where nothing was timed."""

    @property
    def directions(self) -> list[str]:
        """The directions that the track ranks."""
        return list(dict.fromkeys(direction for _, direction in self.cells))

    @property
    def top(self) -> float:
        """The greatest speed of any interval; 0 without a speed."""
        return max((entry.score.high for entry in self.entries if entry.score), default=0.0)

    def row(self, entry: Entry, cell: Cell) -> Record | None:
        """Return the entry's row; None where it has none, or one by another clock's times."""
        row = entry.cells.get(cell)
        return row if row and (row.clock == self.clock or not row.gpu) else None


def rank(records: Iterable[Record]) -> list[Track]:
    """Return every track of every op, from the latest rows.

    Ranked entries stand first, then those that do not cover the track.
    """
    rows = list(records)
    apart = eager_apart(rows)
    tracks: dict[tuple[str, str], dict[str, dict[Cell, Record]]] = defaultdict(dict)
    for row in rows:
        solutions = tracks[row.op, row.track]
        solutions.setdefault(row.solution, {})[row.case, row.direction] = row
    answering = {(row.op, row.solution) for row in rows if row.verdict != "UNSUPPORTED"}
    return [
        _track(op, name, solutions, apart, {name for of, name in answering if of == op})
        for (op, name), solutions in sorted(tracks.items(), key=_place)
    ]


def _place(track: tuple[tuple[str, str], object]) -> tuple[str, int, str]:
    (op, name), _ = track
    stated = TRACKS.get(op, ())
    return op, stated.index(name) if name in stated else len(stated), name


def eager_apart(rows: Iterable[Record]) -> set[tuple[str, ...]]:
    """Return the ids of the rows whose time of eager is not that of the run's other rows.

    Eager's time of a case depends on nothing but the machine, so such a row was disturbed.
    """
    groups: dict[tuple[str, ...], list[Record]] = defaultdict(list)
    for row in rows:
        if row.gpu:
            groups[row.run, row.tier, row.op, row.case, row.direction].append(row)
    ids = set()
    for group in groups.values():
        middle = statistics.median([median(row, "eager") for row in group])
        for row in group if len(group) >= FEW else ():
            if abs(median(row, "eager") / middle - 1) > APART[row.ranked_by]:
                ids.add(row.id)
    return ids


def _track(
    op: str,
    name: str,
    solutions: dict[str, dict[Cell, Record]],
    apart: Collection[tuple[str, ...]],
    answering: Collection[str],
) -> Track:
    cells = tuple(dict.fromkeys(cell for rows in solutions.values() for cell in rows))
    timed = [row for rows in solutions.values() for row in rows.values() if row.gpu]
    clock = max((row.clock for row in timed), default=0)
    entries = [
        _entry(solution, found, cells, clock, apart, silent=solution not in answering)
        for solution, found in solutions.items()
    ]
    scores = {
        entry.solution: combined([pair(entry.cells[cell]) for cell in cells])
        for entry in entries
        if not entry.missing and all(row.gpu for row in entry.cells.values())
    }
    best = sorted(scores, key=lambda name: -scores[name].value)
    # an entry whose interval overlaps with a leader's shares the leader's place
    places = dict(zip(best, stats.leaders([scores[name] for name in best]), strict=True))
    by_name = {entry.solution: entry for entry in entries}
    ranked = [replace(by_name[n], score=scores[n], rank=at + 1) for n, at in places.items()]
    others = sorted(
        (entry for entry in entries if entry.solution not in scores),
        key=lambda entry: (-entry.covered, entry.peer, entry.solution),
    )
    return Track(op, name, cells, (*ranked, *others), clock)


def _entry(
    solution: str,
    found: dict[Cell, Record],
    cells: Sequence[Cell],
    clock: int,
    apart: Collection[tuple[str, ...]],
    silent: bool,
) -> Entry:
    """Return an entry without score and rank; rows of an earlier clock do not count."""

    def counts(cell: Cell) -> bool:
        row = found.get(cell)
        return row is not None and row.verdict == "PASSED" and (row.clock == clock or not row.gpu)

    missing = tuple(cell for cell in cells if not counts(cell))
    peer = next(iter(found.values())).peer
    disturbed = frozenset(cell for cell, row in found.items() if row.id in apart)
    return Entry(solution, peer, found, missing, apart=disturbed, silent=silent)


def combined(times: Sequence[TimePair]) -> Estimate:
    """Return the score of these times.

    The times are independent, so that the variances of the logarithms add. The interval of a median
    need not be symmetric: each side is combined by itself.
    """
    numbers = [
        (mine.median, mine.low, mine.high, eager.median, eager.low, eager.high)
        for mine, eager in times
    ]
    mine, low, high, eager, eager_low, eager_high = np.log(np.array(numbers)).T
    ratio = (eager - mine).mean()
    above = np.sqrt(((eager_high - eager) ** 2 + (mine - low) ** 2).sum()) / len(times)
    below = np.sqrt(((eager - eager_low) ** 2 + (high - mine) ** 2).sum()) / len(times)
    return Estimate(*np.exp([ratio, ratio - below, ratio + above]).tolist())


# --- of one row -----------------------------------------------------------------------------------


def pair(row: Record) -> TimePair:
    """Return the times of the solution and of eager that rank a timed row."""
    times = ranked_times(row)
    return times["solution"], times["eager"]


def ranked_times(row: Record) -> Mapping[str, Summary]:
    """Return the times that rank the row, the GPU's or the host's."""
    return row.host if row.ranked_by == "host" else row.gpu


def median(row: Record, name: str = "solution") -> float:
    """Return a median in microseconds, of the times that rank the row."""
    return ranked_times(row)[name].median


def ratio(row: Record) -> float:
    """Return eager's median over the solution's: 2.0 is twice as fast."""
    return median(row, "eager") / median(row)


def limit(row: Record) -> tuple[float, str]:
    """Return the median microseconds of the slower limit, and its name.

    The limits are a copy of the same bytes and, in some rows, dense products of the same shapes:
    no call of this work can take much less.
    """
    measured = [(row.gpu[name].median, name) for name in LIMITS if name in row.gpu]
    return max(measured)


def share(row: Record) -> float:
    """Return the share of its limit that the row reached, by GPU time."""
    return limit(row)[0] / row.gpu["solution"].median


def sustained_share(row: Record) -> float | None:
    """Return the share of dense products that the row reached where both run on and on."""
    known = row.sustained
    return known["dense"] / known["solution"] if "dense" in known else None
