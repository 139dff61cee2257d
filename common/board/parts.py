"""What a small call is made of: the host's part, the GPU's, and what a CUDA graph leaves of them.

Shown where launching weighs the most: in the cases that rank by host time, or in an op's smallest.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from common.board.table import Table, named
from common.records.runs import Record

PARTS = {
    "forward: host": ("forward", "host", "solution"),
    "no_grad: host": ("forward", "host", "no_grad"),
    "forward: GPU": ("forward", "gpu", "solution"),
    "CUDA graph: GPU": ("forward", "gpu", "graph"),
    "with backward: host": ("backward", "host", "solution"),
    "with backward: GPU": ("backward", "gpu", "solution"),
    "backward alone: GPU": ("backward", "gpu", "backward"),
}
"""Each column's direction, clock and samples."""


def parts(rows: Sequence[Record]) -> list[Table]:
    """A table for each small case of the one op that the rows are of; whoever costs the host least
    stands first."""
    timed = [row for row in rows if row.gpu]
    return [_table([row for row in timed if row.case == case]) for case in _small(timed)]


def _small(timed: Sequence[Record]) -> list[str]:
    hosted = dict.fromkeys(row.case for row in timed if row.ranked_by == "host")
    smallest = sorted(timed, key=lambda row: row.bytes)[:1]
    return list(hosted) or [row.case for row in smallest]


def _table(ours: Sequence[Record]) -> Table:
    of = {(named(row), row.direction): row for row in ours}
    first = sorted(ours, key=lambda row: (row.direction != "forward", _median(row, "host")))
    rows = tuple(
        (name, *(_part(of.get((name, direction)), clock, samples)
                 for direction, clock, samples in PARTS.values()))
        for name in dict.fromkeys(map(named, first))
    )  # fmt: skip
    return Table(f"{ours[0].case}, median µs", ("solution", *PARTS), rows)


def _part(row: Record | None, clock: str, samples: str) -> str:
    if row is None:
        return ""
    median = _median(row, clock, samples)
    return f"{median:.1f}" if np.isfinite(median) else "–"


def _median(row: Record, clock: str, samples: str = "solution") -> float:
    """Infinite where there are no such samples."""
    return float(np.median(getattr(row, clock).get(samples, [np.inf])))
