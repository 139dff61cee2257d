"""The parts of a small call: host time, GPU time, and the replay of its CUDA graph.

They are shown where launching weighs the most: in the cases that rank by host time, or else in the
op's smallest case.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from common.board.table import Table, named
from common.records.lines import Record

PARTS = {
    "forward: host": ("forward", "host", "solution"),
    "no_grad: host": ("forward", "host", "no_grad"),
    "forward: GPU": ("forward", "gpu", "solution"),
    "CUDA graph: GPU": ("forward", "gpu", "graph"),
    "with backward: host": ("backward", "host", "solution"),
    "with backward: GPU": ("backward", "gpu", "solution"),
    "backward alone: GPU": ("backward", "gpu", "backward"),
}
"""The direction of each column, and the name of its time by the GPU's or the host's clock."""


def parts(rows: Sequence[Record]) -> list[Table]:
    """Return a table for each small case of the one op that the rows are of.

    The solution that takes the least host time stands first.
    """
    clock = max((row.clock for row in rows if row.gpu), default=0)
    timed = [row for row in rows if row.gpu and row.clock == clock]
    return [_table([row for row in timed if row.case == case]) for case in _small(timed)]


def _small(timed: Sequence[Record]) -> list[str]:
    hosted = dict.fromkeys(row.case for row in timed if row.ranked_by == "host")
    smallest = sorted(timed, key=lambda row: row.bytes)[:1]
    return list(hosted) or [row.case for row in smallest]


def _table(ours: Sequence[Record]) -> Table:
    of: dict[tuple[str, str], Record] = {(named(row), row.direction): row for row in ours}
    first = sorted(ours, key=_forward_host_time)
    rows = tuple(
        (name, *(_part(of.get((name, direction)), clock, time)
                 for direction, clock, time in PARTS.values()))
        for name in dict.fromkeys(map(named, first))
    )  # fmt: skip
    said = ((note.partition(": ")[0], named(row)) for row in first for note in row.notes)
    notes = tuple(f"{note}: {name}" for note, name in said)
    return Table(f"{ours[0].case}, median µs", ("solution", *PARTS), rows, notes)


def _forward_host_time(row: Record) -> tuple[bool, float]:
    """Order forward before backward, then by host time."""
    return row.direction != "forward", row.host["solution"].median if row.host else math.inf


def _part(row: Record | None, clock: str, time: str) -> str:
    if row is None:
        return ""
    found = (row.host if clock == "host" else row.gpu).get(time)
    return f"{found.median:.1f}" if found else "–"
