"""Rank boards from records, as pure functions: the same records always give the same boards.

The score of a track is the geometric mean, over its cases and directions, of eager's median time
over the solution's median time in the same run. The score's interval combines the intervals of the
rows in quadrature on the log scale. An entry ties with the leader of its group if its interval
overlaps the leader's: with scores 2.0 ± 0.1, 1.9 ± 0.1 and 1.8 ± 0.1, two entries are first and one
is third.
"""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from common import interfaces, stats
from common.records.lines import Influences, Record, Summary, kinds

LIMITS = {"copy": "copy of the same bytes", "dense": "dense products of the same shapes"}
APART: Mapping[str, float] = {"gpu": 0.05, "host": 0.25}
"""The largest relative deviation of eager's time from its median in a run, by clock."""
FEW = 3
"""The fewest rows of a case that can show a deviating row."""
EAGER_APART = "eager's time apart from the run's other rows"
TRACKS = {op: interface.tracks for op, interface in interfaces.known().items()}
"""The tracks of each op in the order of the op's file; other tracks follow by name."""
Cell = tuple[str, str]
"""A case and a direction."""
TimePair = tuple[Summary, Summary]
"""The solution's time and eager's time."""


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
    """The cells whose eager time deviates from the run's other rows; see `eager_apart`."""
    silent: bool = False
    """Whether the solution answers no case of the op in any track."""

    @cached_property
    def disturbed(self) -> dict[Cell, Influences]:
        """Return the cells with disturbed times, with the influences on the times."""
        by_cell = {cell: row.disturbed for cell, row in self.cells.items()}
        for cell in self.apart:
            by_cell[cell].setdefault(self.cells[cell].ranked_by, []).append(EAGER_APART)
        return {cell: influences for cell, influences in by_cell.items() if influences}

    @property
    def modelled(self) -> bool:
        """Return whether the entry has modelled times on a board with measured times."""
        return any(row.modelled for row in self.cells.values())

    @property
    def covered(self) -> int:
        """Return the number of cells that the solution passed."""
        return len(self.cells) - sum(cell in self.cells for cell in self.missing)

    @property
    def error(self) -> float | None:
        """Return the largest error of any cell, in units of eager's own error."""
        errors = [row.error for row in self.cells.values() if row.error is not None]
        return max(errors, default=None)

    @property
    def peak_memory(self) -> int | None:
        """Return the largest peak memory of any cell in bytes; None if no row has a peak."""
        known = [row.peak_memory for row in self.cells.values() if row.peak_memory is not None]
        return max(known, default=None)

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
    def failures(self) -> list[Record]:
        """Return the rows whose verdict is a failure."""
        return [r for r in self.cells.values() if not r.fine]

    @property
    def lacks(self) -> str:
        """Return why the entry is not ranked: its first failure or its first missing cell."""
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

    @property
    def notes(self) -> Counter[str]:
        """Return the number of cells with each kind of note."""
        return Counter(kind for row in self.cells.values() for kind in kinds(row.notes))

    @property
    def unsupported(self) -> str:
        """Return the distinct reasons of the missing cells that the solution does not support."""
        rows = [self.cells[cell] for cell in self.missing if cell in self.cells]
        reasons = [row.reason for row in rows if row.verdict == "UNSUPPORTED"]
        return "; ".join(dict.fromkeys(reasons))


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
        """Return the entry's row; None without a row or where another clock measured the row."""
        row = entry.cells.get(cell)
        return row if row and (row.clock == self.clock or not row.gpu) else None


def rank(records: Iterable[Record]) -> list[Track]:
    """Return every track of every op, from the latest rows.

    Ranked entries come first, followed by entries that do not cover the track. A track's cells have
    the order of the rows.
    """
    rows = list(records)
    apart = eager_apart(rows)
    tracks: dict[tuple[str, str], list[Record]] = defaultdict(list)
    for row in rows:
        tracks[row.op, row.track].append(row)
    answering = {(row.op, row.solution) for row in rows if row.verdict != "UNSUPPORTED"}
    return [
        _track(op, name, of_track, apart, {solution for of, solution in answering if of == op})
        for (op, name), of_track in sorted(tracks.items(), key=_place)
    ]


def unranked(tracks: Iterable[Track]) -> Iterator[str]:
    """Yield a line for each solution and reason: the tracks that do not rank the solution."""
    lacking: dict[tuple[str, str], list[str]] = defaultdict(list)
    for track in tracks:
        for entry in track.entries:
            if entry.unsupported:
                share = f"lacks {len(entry.missing)} of {len(track.cells)} rows"
                lacking[entry.solution, entry.unsupported].append(f"{track.name} ({share})")
    for (solution, reasons), names in lacking.items():
        yield f"{solution} has no place in {', '.join(names)}: {reasons}"


def _place(track: tuple[tuple[str, str], object]) -> tuple[str, int, str]:
    (op, name), _ = track
    stated = TRACKS.get(op, ())
    return op, stated.index(name) if name in stated else len(stated), name


def eager_apart(rows: Iterable[Record]) -> set[tuple[str, ...]]:
    """Return the ids of the rows whose eager time deviates from the run's other rows.

    Eager's time of a case depends only on the machine, so that a deviating row was disturbed.
    """
    groups: dict[tuple[str, ...], list[Record]] = defaultdict(list)
    for row in rows:
        if row.gpu:
            groups[row.run, row.tier, row.op, row.case, row.direction].append(row)
    ids = set()
    for group in groups.values():
        median_time = statistics.median([median(row, "eager") for row in group])
        for row in group if len(group) >= FEW else ():
            if abs(median(row, "eager") / median_time - 1) > APART[row.ranked_by]:
                ids.add(row.id)
    return ids


def _track(
    op: str,
    name: str,
    rows: Sequence[Record],
    apart: Collection[tuple[str, ...]],
    answering: Collection[str],
) -> Track:
    solutions: dict[str, dict[Cell, Record]] = defaultdict(dict)
    for row in rows:
        solutions[row.solution][row.case, row.direction] = row
    cells = tuple(dict.fromkeys((row.case, row.direction) for row in rows))
    clock = max((row.clock for row in rows if row.gpu), default=0)
    entries = [
        _entry(solution, of_solution, cells, clock, apart, silent=solution not in answering)
        for solution, of_solution in solutions.items()
    ]
    scores = {
        entry.solution: combined([pair(entry.cells[cell]) for cell in cells])
        for entry in entries
        if not entry.missing and all(row.gpu for row in entry.cells.values())
    }
    best = sorted(scores, key=lambda name: -scores[name].value)
    # an entry whose interval overlaps a leader's interval shares the leader's place
    places = dict(zip(best, stats.leaders([scores[name] for name in best]), strict=True))
    by_name = {entry.solution: entry for entry in entries}
    ranked = [replace(by_name[name], score=scores[name], rank=i + 1) for name, i in places.items()]
    others = sorted(
        (entry for entry in entries if entry.solution not in scores),
        key=lambda entry: (-entry.covered, entry.peer, entry.solution),
    )
    return Track(op, name, cells, (*ranked, *others), clock)


def _entry(
    solution: str,
    rows: dict[Cell, Record],
    cells: Sequence[Cell],
    clock: int,
    apart: Collection[tuple[str, ...]],
    silent: bool,
) -> Entry:
    """Return an entry without score and rank; rows of an earlier clock do not count."""

    def counts(cell: Cell) -> bool:
        row = rows.get(cell)
        return row is not None and row.verdict == "PASSED" and (row.clock == clock or not row.gpu)

    missing = tuple(cell for cell in cells if not counts(cell))
    peer = next(iter(rows.values())).peer
    disturbed = frozenset(cell for cell, row in rows.items() if row.id in apart)
    return Entry(solution, peer, rows, missing, apart=disturbed, silent=silent)


def combined(times: Sequence[TimePair]) -> Estimate:
    """Return the score of these times.

    The times are independent, so that the variances of the logarithms add. A median's interval may
    be asymmetric, so that the lower and the upper sides are combined separately.
    """
    numbers = [
        (solution.median, solution.low, solution.high, eager.median, eager.low, eager.high)
        for solution, eager in times
    ]
    solution, low, high, eager, eager_low, eager_high = np.log(np.array(numbers)).T
    ratio = (eager - solution).mean()
    above = np.sqrt(((eager_high - eager) ** 2 + (solution - low) ** 2).sum()) / len(times)
    below = np.sqrt(((eager - eager_low) ** 2 + (high - solution) ** 2).sum()) / len(times)
    return Estimate(*np.exp([ratio, ratio - below, ratio + above]).tolist())


# --- of one row -----------------------------------------------------------------------------------


def pair(row: Record) -> TimePair:
    """Return the solution's and eager's times that rank a timed row."""
    times = ranked_times(row)
    return times["solution"], times["eager"]


def ranked_times(row: Record) -> Mapping[str, Summary]:
    """Return the times of the clock that ranks the row, the GPU's or the host's."""
    return row.host if row.ranked_by == "host" else row.gpu


def median(row: Record, name: str = "solution") -> float:
    """Return a median in microseconds by the clock that ranks the row."""
    return ranked_times(row)[name].median


def ratio(row: Record) -> float:
    """Return eager's median over the solution's median: 2.0 is twice as fast."""
    return median(row, "eager") / median(row)


def limit(row: Record) -> tuple[float, str]:
    """Return the median microseconds and the name of the slower limit.

    The limits are a copy of the same bytes and, in some rows, dense products of the same shapes. A
    call can hardly take less time than the slower limit.
    """
    measured = [(row.gpu[name].median, name) for name in LIMITS if name in row.gpu]
    return max(measured)


def share(row: Record) -> float:
    """Return the row's share of its limit, by GPU time."""
    return limit(row)[0] / row.gpu["solution"].median


def sustained_share(row: Record) -> float | None:
    """Return the row's share of dense products, both in a sustained loop; None without the loop."""
    known = row.sustained
    return known["dense"] / known["solution"] if "dense" in known else None
