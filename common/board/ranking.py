"""Records -> ranked boards. Pure: the same records always give the same boards.

A track's score is the geometric mean, over its cases and directions, of eager's median time over
the solution's, both taken in the same run. Its interval comes from bootstrapping all of the track's
samples together. Entries whose interval reaches that of the leader of their group tie with it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from common.records.runs import Record

REPLICATES = 1000
CONFIDENCE = (2.5, 97.5)
LIMITS = {"copy": "copy of the same bytes", "dense": "dense products of the same shapes"}
Cell = tuple[str, str]
"""A case and a direction."""


@dataclass(frozen=True)
class Score:
    """How many times as fast as eager, with its 95 % interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Entry:
    """One solution in one track."""

    solution: str
    peer: bool
    cells: dict[Cell, Record]
    missing: tuple[Cell, ...]
    """What the track has and the solution did not pass."""
    score: Score | None = None
    rank: int | None = None

    @property
    def covered(self) -> int:
        return len(self.cells) - sum(cell in self.cells for cell in self.missing)

    @property
    def error(self) -> float | None:
        """The worst error of all that passed, in units of eager's own."""
        errors = [row.error for row in self.cells.values() if row.error is not None]
        return max(errors, default=None)

    @property
    def worst_share(self) -> Record | None:
        """The row that is furthest from its limit."""
        timed = [row for row in self.cells.values() if row.gpu and row.ranked_by == "gpu"]
        return min(timed, key=share, default=None)

    @property
    def failures(self) -> list[Record]:
        return [r for r in self.cells.values() if r.verdict not in ("PASSED", "UNSUPPORTED")]

    @property
    def lacks(self) -> str:
        """Why it is not ranked: the first failure, else what it does not support."""
        rows = self.failures or [self.cells[c] for c in self.missing if c in self.cells]
        if not rows:
            return "not measured yet" if self.missing else ""
        row = rows[0]
        more = f", and {len(self.missing) - 1} more" if len(self.missing) > 1 else ""
        return f"{row.verdict}: {row.reason} ({row.case} {row.direction}{more})"


@dataclass(frozen=True)
class Track:
    """One table of the leaderboard."""

    op: str
    name: str
    cells: tuple[Cell, ...]
    entries: tuple[Entry, ...] = field(default_factory=tuple)


def rank(records: Iterable[Record]) -> list[Track]:
    """Every track of every op: first the ranked, best first, then those that do not cover it."""
    tracks: dict[tuple[str, str], dict[str, dict[Cell, Record]]] = defaultdict(dict)
    for row in records:
        solutions = tracks[row.op, row.track]
        solutions.setdefault(row.solution, {})[row.case, row.direction] = row
    return [_track(op, name, solutions) for (op, name), solutions in sorted(tracks.items())]


def _track(op: str, name: str, solutions: dict[str, dict[Cell, Record]]) -> Track:
    cells = tuple(dict.fromkeys(cell for found in solutions.values() for cell in found))
    entries = [_entry(solution, found, cells) for solution, found in solutions.items()]
    ranked = sorted((e for e in entries if e.score), key=lambda e: -_value(e))
    others = sorted(
        (e for e in entries if not e.score), key=lambda e: (-e.covered, e.peer, e.solution)
    )
    return Track(op, name, cells, (*_numbered(ranked), *others))


def _entry(solution: str, found: dict[Cell, Record], cells: Sequence[Cell]) -> Entry:
    missing = tuple(c for c in cells if c not in found or found[c].verdict != "PASSED")
    peer = next(iter(found.values())).peer
    timed = not missing and all(row.gpu for row in found.values())
    scored = score([found[cell] for cell in cells]) if timed else None
    return Entry(solution, peer, found, missing, scored)


def score(rows: Sequence[Record]) -> Score:
    """The geometric mean of eager's median over the solution's, and its bootstrapped interval."""
    generator = np.random.default_rng(0)
    logs = np.zeros(REPLICATES)
    exact = 0.0
    for row in rows:
        times = clock(row)
        exact += np.log(ratio(row))
        for name, sign in (("eager", 1), ("solution", -1)):
            samples = np.asarray(times[name])
            drawn = generator.integers(0, len(samples), (REPLICATES, len(samples)))
            logs += sign * np.log(np.median(samples[drawn], axis=1))
    low, high = np.exp(np.percentile(logs / len(rows), CONFIDENCE))
    return Score(float(np.exp(exact / len(rows))), float(low), float(high))


def clock(row: Record) -> dict[str, list[float]]:
    """The samples that rank the row."""
    return dict(row.host if row.ranked_by == "host" else row.gpu)


def median(row: Record, name: str = "solution") -> float:
    """Microseconds, by the clock that ranks the row."""
    return float(np.median(clock(row)[name]))


def ratio(row: Record) -> float:
    """Eager's median over the solution's: how many times as fast it is."""
    return median(row, "eager") / median(row)


def limit(row: Record) -> tuple[float, str]:
    """The slower of a copy of the same bytes and dense products of the same shapes: its median
    microseconds, and which it is. No call of this work can take much less."""
    measured = [(float(np.median(row.gpu[name])), name) for name in LIMITS if name in row.gpu]
    return max(measured)


def share(row: Record) -> float:
    """What part of its limit the row reached, by GPU time."""
    return limit(row)[0] / float(np.median(row.gpu["solution"]))


def _value(entry: Entry) -> float:
    return entry.score.value if entry.score else 0.0


def _numbered(entries: Sequence[Entry]) -> list[Entry]:
    """Best first; an entry whose interval reaches its group's leader's has the leader's rank."""
    numbered: list[Entry] = []
    leader: Entry | None = None
    for position, entry in enumerate(entries, start=1):
        assert entry.score
        if leader is None or not leader.score or entry.score.high < leader.score.low:
            leader = replace(entry, rank=position)
        numbered.append(replace(entry, rank=leader.rank))
    return numbered
