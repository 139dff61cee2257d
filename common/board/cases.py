"""The times and the memory of each case for scripts, and the parts of a small call for the page."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec

from common.board.devices import Device, entries
from common.board.table import Table, named
from common.records.lines import Record

FIELDS = (
    "device", "op", "track", "case", "direction", "solution", "peer", "verdict", "ranked_by",
    "peak_memory", "gpu_solution", "gpu_backward", "gpu_graph", "gpu_eager", "gpu_copy",
    "gpu_dense", "host_solution", "host_no_grad", "host_eager", "loop_solution", "loop_eager",
    "loop_dense",
)  # fmt: skip
"""The names of the fields of a case: medians in microseconds, memory in bytes."""
PARTS = {
    "forward: host": ("forward", "host_solution"),
    "no_grad: host": ("forward", "host_no_grad"),
    "forward: GPU": ("forward", "gpu_solution"),
    "CUDA graph: GPU": ("forward", "gpu_graph"),
    "forward: loop": ("forward", "loop_solution"),
    "with backward: host": ("backward", "host_solution"),
    "with backward: GPU": ("backward", "gpu_solution"),
    "with backward: loop": ("backward", "loop_solution"),
    "backward alone: GPU": ("backward", "gpu_backward"),
}
"""The direction and the field of each part of a call."""


def medians(row: Record) -> dict[str, float]:
    """Return the row's medians in microseconds by the field of `FIELDS`."""
    return {
        **{f"gpu_{name}": time.median for name, time in row.gpu.items()},
        **{f"host_{name}": time.median for name, time in row.host.items()},
        **{f"loop_{name}": time for name, time in row.sustained.items()},
    }


def rows(devices: Iterable[Device], only: str = "") -> Iterator[dict[str, Any]]:
    """Yield a row for each device, track, solution, case and direction that `only` selects.

    As on every board, rows that an earlier version of the clock measured are left out.
    """
    for device, track, entry in entries(devices, only):
        for row in filter(None, [track.row(entry, cell) for cell in track.cells]):
            fields = msgspec.structs.asdict(row) | medians(row) | {"device": device.name}
            yield {name: fields.get(name) for name in FIELDS}


# --- the parts of a small call --------------------------------------------------------------------


def parts(rows: Iterable[Record]) -> list[Table]:
    """Return a table for each small case of the op to which all rows belong.

    Launching dominates the small cases: the cases ranked by host time, or else the smallest case.
    """
    rows = [row for row in rows if row.gpu]
    clock = max((row.clock for row in rows), default=0)
    timed = [row for row in rows if row.clock == clock]
    smallest = [row.case for row in sorted(timed, key=lambda row: row.bytes)[:1]]
    small = dict.fromkeys(row.case for row in timed if row.ranked_by == "host") or smallest
    return [_parts_of([row for row in timed if row.case == case]) for case in small]


def _parts_of(of_case: Sequence[Record]) -> Table:
    """Return a line for each solution; the one with the least host time is the first."""

    def host_time(row: Record) -> tuple[bool, float]:
        return row.direction != "forward", row.host["solution"].median if row.host else math.inf

    ordered = sorted(of_case, key=host_time)
    found: dict[tuple[str, str], dict[str, float]]
    found = {(named(row), row.direction): medians(row) for row in ordered}

    def text(name: str, direction: str, field: str) -> str:
        if (name, direction) not in found:
            return ""
        microseconds = found[name, direction].get(field)
        return "–" if microseconds is None else f"{microseconds:.1f}"

    lines = tuple(
        (name, *(text(name, *part) for part in PARTS.values()))
        for name in dict.fromkeys(map(named, ordered))
    )
    notes = tuple(
        f"{note.partition(': ')[0]}: {named(row)}" for row in ordered for note in row.notes
    )
    return Table(f"{of_case[0].case}, median µs", ("solution", *PARTS), lines, notes)
