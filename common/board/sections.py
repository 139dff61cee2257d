"""The parts of a device's board: each op's tracks, and its cases that do not fit the device."""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import dataclass

from common.board.ranking import Track
from common.board.table import place, tracks_by_op
from common.records.lines import LeftOut, Record
from common.records.runs import Results


@dataclass(frozen=True)
class Section:
    """One op on one device."""

    op: str
    tracks: tuple[Track, ...]
    """The main track is the first; none where every case is left out."""
    rows: tuple[Record, ...]
    left_out: tuple[str, ...]
    """A line for each case that does not fit the device, and one on the solutions not shown."""


def sections(results: Results, known: Container[str]) -> list[Section]:
    """Return the ops of a device in the order of `OPS`, with the known solutions' latest rows."""
    rows = [row for row in results.latest() if row.solution in known]
    tracks = dict(tracks_by_op(rows, results.places))
    left_out = results.left_out()
    ops = sorted({*tracks, *(line.op for line in left_out)}, key=place)
    return [
        Section(
            op,
            tuple(tracks.get(op, ())),
            tuple(row for row in rows if row.op == op),
            (
                *lines_of(line for line in left_out if line.op == op),
                *(line for name, line in results.unshown.items() if name == op),
            ),
        )
        for op in ops
    ]


def lines_of(left_out: Iterable[LeftOut]) -> list[str]:
    """Return a line of text for each case that does not fit the device."""
    return [f"Left out on this device: {line.case} ({line.reason})." for line in left_out]
