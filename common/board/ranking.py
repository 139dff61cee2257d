"""Rank boards from records, as pure functions: the same records always give the same boards.

A track is a table, and a quantity is a column of it with places of its own: one clock in one
direction, such as the GPU's time with backward. The score of a quantity is the geometric mean, over
its cells, of the share of the limit: the limit's median time over the solution's in the same run.
Where no limit is measured, it is eager's time over the solution's. The score's interval combines
the intervals of the rows in quadrature on the log scale, or spans the scores of several runs.

An entry ties with the leader of its group if its interval overlaps the leader's: with scores
2.0 ± 0.1, 1.9 ± 0.1 and 1.8 ± 0.1, two entries are first and one is third.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product

import numpy as np

from common import interfaces, stats
from common.records.lines import Estimate, Record

LIMITS = {"copy": "copy of the same bytes", "dense": "dense products of the same shapes"}
TRACKS = {op: interface.tracks for op, interface in interfaces.known().items()}
"""What the cases of each op's tracks are, both in the order of boards; others follow by name."""
Cell = tuple[str, str]
"""A case and a direction."""
DIRECTION = {"forward": "forward", "backward": "with backward"}
"""What a row of each direction times, in words."""
CLOCKS = {"gpu": "GPU", "host": "host"}
LOOPS = {"solution": "in a loop", "one_mask": "one mask"}
"""What a row's sustained times of the solution are, by name."""


@dataclass(frozen=True)
class About:
    """The facts of a solution that come from its source, which is read as text and not run."""

    note: str = ""
    digest: str = ""
    """Empty for a solution without a source in this tree."""

    def is_newer(self, rows: Iterable[Record]) -> bool:
        """Return whether the source has changed since some row was measured."""
        return bool(self.digest) and any(row.sources != self.digest for row in rows)


@dataclass(frozen=True)
class Quantity:
    """One clock, or one loop, in one direction, by which a column ranks."""

    by: str
    """A clock, `gpu` or `host`; or the solution's name among the times of calls in a loop."""
    direction: str

    @property
    def name(self) -> str:
        """Return the heading, such as `GPU, with backward`."""
        return f"{(CLOCKS | LOOPS)[self.by]}, {DIRECTION[self.direction]}"

    def has(self, row: Record) -> bool:
        """Return whether the column is of the row's cell, even where the row failed."""
        return row.direction == self.direction and self.by in (row.ranked_by, *row.sustained)

    def times(self, row: Record) -> Mapping[str, Estimate]:
        """Return the row's times by this clock: the solution's, eager's and the limits'."""
        if not self.has(row):
            return {}
        if self.by in LOOPS:
            loops = row.sustained | {"solution": row.sustained[self.by]}
            return {name: Estimate(time, time, time) for name, time in loops.items()}
        return ranked_times(row)


QUANTITIES = tuple(Quantity(*each) for each in product(CLOCKS | LOOPS, DIRECTION))
"""Every quantity, in the order of a table's columns."""
MAIN = (QUANTITIES[1], QUANTITIES[0], QUANTITIES[3], *QUANTITIES)
"""The quantities by which a table is sorted: the first that the track has."""


@dataclass(frozen=True)
class Score:
    """The speed of an entry by a quantity: geometric means over the quantity's cells."""

    main: Estimate
    """The limit's time over the solution's, or eager's where no limit is measured."""
    of_limit: bool
    eager: float
    """Eager's time over the solution's."""
    runs: int = 1
    """The runs that the interval spans; of a single run, it is within that run."""
    rank: int | None = None


@dataclass(frozen=True)
class Entry:
    """One solution in one track."""

    solution: str
    peer: bool
    about: About
    cells: Mapping[Cell, Record]
    missing: tuple[Cell, ...]
    """The track's cells that the solution did not pass, or that an earlier clock measured."""
    scores: Mapping[Quantity, Score] = field(default_factory=dict)
    """The score of each quantity whose cells the solution covers whole."""

    @property
    def handle(self) -> str:
        """Return the name of the solution's folder."""
        return self.solution.partition("/")[0]

    @property
    def disturbed(self) -> set[str]:
        """The clocks by which other work disturbed some row."""
        return {clock for row in self.cells.values() for clock in row.disturbed}

    @property
    def stale(self) -> bool:
        """Return whether a row was measured before the solution's source last changed."""
        return self.about.is_newer(self.cells.values())

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
    """The entries by their scores, the main quantity's first, then those without a score."""
    clock: int
    """The version of the clock that measured the ranked entries; 0 where nothing was timed."""
    timed: bool = True
    """Whether the device ranks entries, by measured or by modelled times."""

    @cached_property
    def quantities(self) -> tuple[Quantity, ...]:
        """The quantities that some row of the track has."""
        rows = [row for entry in self.entries for row in entry.cells.values() if row.gpu]
        return tuple(each for each in QUANTITIES if self.timed and any(map(each.times, rows)))

    @property
    def main(self) -> Quantity:
        """The quantity by which the table is sorted."""
        return next((each for each in MAIN if each in self.quantities), MAIN[0])

    @property
    def title(self) -> str:
        """Return the op and the name: `rope: core`."""
        return f"{self.op}: {self.name}"

    def placed(self, quantity: Quantity) -> list[Entry]:
        """Return the entries with a place by a quantity, the fastest first."""
        found = (entry for entry in self.entries if quantity in entry.scores)
        return sorted(found, key=lambda entry: -entry.scores[quantity].main.value)

    def top(self, quantity: Quantity) -> float:
        """Return the greatest value of any interval, at least 1."""
        highs = [entry.scores[quantity].main.high for entry in self.placed(quantity)]
        return max([1.0, *highs])

    def entry(self, solution: str) -> Entry | None:
        """Return the solution's entry, if it has one."""
        return next((entry for entry in self.entries if entry.solution == solution), None)

    @property
    def words(self) -> str:
        """Description of the track's cases; "" if the op gives none."""
        return TRACKS.get(self.op, {}).get(self.name, "")

    def row(self, entry: Entry, cell: Cell) -> Record | None:
        """Return the entry's row; None without a row or where another clock measured the row."""
        row = entry.cells.get(cell)
        return row if row and (row.clock == self.clock or not row.gpu) else None


def op_order(op: str) -> tuple[int, str]:
    """Return a sort key that puts ops in the order of boards; an op without a file comes last."""
    return ([*TRACKS].index(op) if op in TRACKS else len(TRACKS), op)


def rank(
    rows: Iterable[Record],
    about: Mapping[str, About] | None = None,
    timed: bool = True,
    repeated: Iterable[Record] = (),
) -> list[Track]:
    """Return every track of every op in the order of boards, from the latest rows.

    A track's cells have the order of the rows. The facts `about` solutions show stale entries, and
    `timed` is whether the device ranks any. The runs of `repeated`, earlier rows of the same
    sources, widen the intervals of the scores by quantities of which they have all cells.
    """
    rows = list(rows)
    by_track: dict[tuple[str, str], list[Record]] = defaultdict(list)
    for row in rows:
        by_track[row.op, row.track].append(row)
    earlier: dict[tuple[str, str], dict[str, dict[Cell, Record]]] = {}
    for row in repeated:
        runs = earlier.setdefault((row.op, row.solution), {})
        runs.setdefault(row.run, {})[row.case, row.direction] = row
    tracks = []
    for (op, name), of_track in sorted(by_track.items(), key=lambda item: _place(*item[0])):
        cells = tuple(dict.fromkeys((row.case, row.direction) for row in of_track))
        clock = max((row.clock for row in of_track if row.gpu), default=0)
        solutions: dict[str, dict[Cell, Record]] = defaultdict(dict)
        for row in of_track:
            solutions[row.solution][row.case, row.direction] = row
        columns = {
            each: tuple(dict.fromkeys((r.case, r.direction) for r in of_track if each.has(r)))
            for each in QUANTITIES
        }
        entries = [
            _entry(own, cells, columns, clock, (about or {}).get(solution, About()),
                   earlier.get((op, solution), {}))
            for solution, own in solutions.items()
        ]  # fmt: skip
        tracks.append(Track(op, name, cells, _ordered(entries), clock, timed))
    return tracks


def _place(op: str, track: str) -> tuple[tuple[int, str], int, str]:
    stated = [*TRACKS.get(op, ())]
    return op_order(op), stated.index(track) if track in stated else len(stated), track


def _entry(
    rows: Mapping[Cell, Record],
    cells: Iterable[Cell],
    columns: Mapping[Quantity, Sequence[Cell]],
    clock: int,
    about: About,
    earlier: Mapping[str, Mapping[Cell, Record]],
) -> Entry:
    """Return an entry without places; rows of an earlier clock do not count."""
    passed = {cell: row for cell, row in rows.items()
              if row.verdict == "PASSED" and (row.clock == clock or not row.gpu)}  # fmt: skip
    scores = {}
    for quantity, own in columns.items():
        if score := _score(quantity, own, passed):
            others = filter(None, (_score(quantity, own, of_run) for of_run in earlier.values()))
            main, values = score.main, [each.main.value for each in others]
            low, high = min([main.low, *values]), max([main.high, *values])
            main = Estimate(main.value, low, high)
            scores[quantity] = replace(score, main=main, runs=1 + len(values))
    first = next(iter(rows.values()))
    missing = tuple(cell for cell in cells if cell not in passed)
    return Entry(first.solution, first.peer, about, rows, missing, scores)


def _score(quantity: Quantity, cells: Sequence[Cell], rows: Mapping[Cell, Record]) -> Score | None:
    """Return the score of the rows; None if a cell is not covered, or there is none."""
    times = [quantity.times(rows[cell]) for cell in cells if cell in rows]
    if not times or len(times) < len(cells) or not all(times):
        return None
    names = [slower_limit(each) for each in times]
    eager = combined([(each["eager"], each["solution"]) for each in times])
    if not all(names):
        return Score(eager, False, eager.value)
    pairs = [(each[name], each["solution"]) for each, name in zip(times, names, strict=True)]
    return Score(combined(pairs), True, eager.value)


def _ordered(entries: Sequence[Entry]) -> tuple[Entry, ...]:
    """Return the entries with their places, by their scores, and then those without a score."""
    scores: dict[str, dict[Quantity, Score]] = {entry.solution: {} for entry in entries}
    for quantity in QUANTITIES:
        found = [(entry, entry.scores[quantity]) for entry in entries if quantity in entry.scores]
        found.sort(key=lambda pair: -pair[1].main.value)
        # an entry whose interval overlaps a leader's interval shares the leader's place
        leaders = stats.leaders([(score.main.low, score.main.high) for _, score in found])
        for (entry, score), leader in zip(found, leaders, strict=True):
            scores[entry.solution][quantity] = replace(score, rank=leader + 1)
    order = [each for each in dict.fromkeys(MAIN) if any(each in of for of in scores.values())]

    def place(entry: Entry) -> tuple[object, ...]:
        own = scores[entry.solution]
        speeds = [-own[each].main.value if each in own else 0.0 for each in order]
        return *speeds, -entry.covered, entry.peer, entry.solution

    ordered = sorted(entries, key=place)
    return tuple(replace(entry, scores=scores[entry.solution]) for entry in ordered)


def combined(times: Sequence[tuple[Estimate, Estimate]]) -> Estimate:
    """Return the geometric mean of ratios of times, each of a first time over a second.

    The times are independent, so that the variances of the logarithms add. A median's interval may
    be asymmetric, so that the lower and the upper sides are combined separately.
    """
    numbers = [(each.value, each.low, each.high) for pair in times for each in pair]
    over, over_low, over_high, own, low, high = np.log(np.reshape(numbers, (-1, 6))).T
    ratio = (over - own).mean()
    above = np.sqrt(((over_high - over) ** 2 + (own - low) ** 2).sum()) / len(times)
    below = np.sqrt(((over - over_low) ** 2 + (high - own) ** 2).sum()) / len(times)
    return Estimate(*np.exp([ratio, ratio - below, ratio + above]).tolist())


# --- of one row -----------------------------------------------------------------------------------


def ranked_times(row: Record) -> Mapping[str, Estimate]:
    """Return the times of the clock that ranks the row, the GPU's or the host's."""
    return row.host if row.ranked_by == "host" else row.gpu


def median(row: Record, name: str = "solution") -> float:
    """Return a median in microseconds by the clock that ranks the row."""
    return ranked_times(row)[name].value


def slower_limit(times: Mapping[str, Estimate]) -> str:
    """Return the name of the slower limit among the times, "" if none was measured.

    The limits are a copy of the same bytes and, in some rows, dense products of the same shapes. A
    call can hardly take less time than the slower limit.
    """
    known = [name for name in LIMITS if name in times]
    return max(known, key=lambda name: times[name].value, default="")


def reached(times: Mapping[str, Estimate]) -> Estimate:
    """Return the share of the slower limit, or the multiple of eager's speed if none was timed."""
    return combined([(times[slower_limit(times) or "eager"], times["solution"])])


def limit(row: Record) -> tuple[float, str]:
    """Return the median microseconds and the name of the slower limit, by the GPU's time."""
    name = slower_limit(row.gpu)
    return row.gpu[name].value, name


def share(row: Record) -> float:
    """Return the row's share of its limit, by GPU time."""
    return limit(row)[0] / row.gpu["solution"].value


def sustained_share(row: Record) -> float | None:
    """Return the row's share of dense products, both in a sustained loop; None without the loop."""
    known = row.sustained
    return known["dense"] / known["solution"] if "dense" in known else None
