"""The times and the memory of each case: as tables, for scripts, and the parts of a small call."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from common.board.devices import Device
from common.board.ranking import LIMITS, Cell, Entry, Track, median
from common.board.table import DIRECTION, DISTURBED, Table, named, size
from common.records.lines import Record
from common.solutions import is_among

TIMES: Mapping[str, Sequence[str]] = {
    "gpu": ("solution", "backward", "graph", "eager", "copy", "dense"),
    "host": ("solution", "no_grad", "eager"),
    "loop": ("solution", "eager", "dense"),
}
"""The times of a row by clock; `loop` is `Record.sustained`."""
FIELDS = [
    "device", "op", "track", "case", "direction", "solution", "peer", "verdict", "ranked_by",
    "peak_memory", *(f"{clock}_{name}" for clock, names in TIMES.items() for name in names),
]  # fmt: skip
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
    by_clock = {"gpu": row.gpu, "host": row.host}
    found = {
        f"{clock}_{name}": time.median
        for clock, times in by_clock.items()
        for name, time in times.items()
    }
    return found | {f"loop_{name}": time for name, time in row.sustained.items()}


def rows(devices: Iterable[Device], only: str = "") -> Iterator[dict[str, Any]]:
    """Yield a row for each device, track, solution, case and direction that `only` selects.

    As on every board, rows that an earlier version of the clock measured are left out.
    """
    for device in devices:
        for track in device.tracks.values():
            for entry in track.entries:
                if only and not is_among(entry.solution, only):
                    continue
                for row in filter(None, [track.row(entry, cell) for cell in track.cells]):
                    fields = msgspec.structs.asdict(row) | medians(row) | {"device": device.name}
                    yield {name: fields.get(name) for name in FIELDS}


# --- every case as a table ------------------------------------------------------------------------


def times(track: Track) -> list[Table]:
    """Return a table for each direction: every solution's median microseconds in every case."""
    words = {**DIRECTION, "backward": f"{DIRECTION['backward']} (backward alone)"}

    def text(entry: Entry, row: Record) -> str:
        if not row.gpu:
            return row.verdict
        disturbed = (row.case, row.direction) in entry.disturbed
        alone = "backward" in row.gpu and row.ranked_by == "gpu"
        by_itself = f" ({median(row, 'backward'):.1f})" if alone else ""
        return f"{median(row):.1f}{DISTURBED * disturbed}{by_itself}"

    def heading(cell: Cell) -> str:
        row = next(entry.cells[cell] for entry in track.entries if cell in entry.cells)
        return f"{cell[0]} (host)" if row.ranked_by == "host" else cell[0]

    tables = []
    for direction in DIRECTION:
        if cells := [cell for cell in track.cells if cell[1] == direction]:
            limits = [row for name in LIMITS if any((row := _limit(track, cells, name))[1:])]
            title = f"{track.title}, {words[direction]}, median µs"
            header = ("solution", *map(heading, cells))
            tables.append(Table(title, header, (*_by_case(track, cells, text), *limits)))
    return tables


def memory(track: Track) -> list[Table]:
    """Return a table for each direction: every solution's peak memory in every case.

    A direction without a known peak has no table.
    """
    tables = []
    for direction, words in DIRECTION.items():
        rows = [row for entry in track.entries for row in entry.cells.values()]
        known = {(row.case, row.direction) for row in rows if row.peak_memory is not None}
        if cells := [cell for cell in track.cells if cell in known and cell[1] == direction]:
            lines = tuple(_by_case(track, cells, lambda _, row: size(row.peak_memory)))
            header = ("solution", *(case for case, _ in cells))
            tables.append(Table(f"{track.title}, {words}, peak memory", header, lines))
    return tables


def _by_case(
    track: Track, cells: Sequence[Cell], text: Callable[[Entry, Record], str]
) -> list[tuple[str, ...]]:
    """Return a line for each solution; the text of a cell without a row is empty."""
    return [
        (named(entry), *(text(entry, row) if (row := track.row(entry, cell)) else ""
                         for cell in cells))
        for entry in track.entries
    ]  # fmt: skip


def _limit(track: Track, cells: Sequence[Cell], name: str) -> tuple[str, ...]:
    """Return a limit's line: in each cell the median of the limit's medians in all entries."""
    texts = [LIMITS[name]]
    for cell in cells:
        rows = filter(None, [track.row(entry, cell) for entry in track.entries])
        timed = [median(row, name) for row in rows if name in row.gpu and row.ranked_by == "gpu"]
        texts.append(f"{statistics.median_high(timed):.1f}" if timed else "")
    return tuple(texts)


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
