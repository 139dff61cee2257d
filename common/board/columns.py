"""The columns of a board, declared once for the terminal, Markdown, JSON and the page.

A new column is one more entry of `COLUMNS`:

    Column("launches", text=lambda track, entry: str(entry.launches),
           data={"launches": lambda track, entry: entry.launches}, style="number")
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from common.board.devices import Device
from common.board.ranking import Entry, Track, limit, ranked_times, share, sustained_share
from common.board.table import UNRANKED, Table, footnotes, marked, percentage, size, speed, where
from common.records.lines import Record, Summary
from common.solutions import is_among

Value = Callable[[Track, Entry], Any]
Text = Callable[[Track, Entry], str]


@dataclass(frozen=True, eq=False)
class Column:
    """A column of every board.

    `text` returns a cell of LEADERBOARD.md; `short` returns a terminal's cell where the two differ.
    Neither board has a column without `text`.
    """

    name: str = ""
    text: Text | None = None
    short: Text | None = None
    data: Mapping[str, Value] = field(default_factory=dict)
    """The fields of JSON; None for an unknown value."""
    order: Value | None = None
    """The page's sort key; the first field by default."""
    style: Literal["", "place", "name", "speed", "time", "share", "number", "note"] = ""
    """The page's style of the cells; the page omits a column without a style."""
    label: str = ""
    """The page's heading for a single case; the name by default."""
    several: str = ""
    """The page's heading for several cases, of which the worst is shown; the label by default."""
    cases: Literal["", "one", "several"] = ""
    """The number of cases for which the page has the column; any number by default."""
    known: Callable[[Track], bool] = lambda track: True
    """Return whether a board of the track has the column."""
    spare: int = 0
    """A narrow terminal omits the column with the greatest number first, and never omits 0."""

    def cell(self, track: Track, entry: Entry, short: bool = False) -> str:
        """Return the text of a cell."""
        write = (self.short if short else None) or self.text
        return write(track, entry) if write else ""

    def heading(self, single: bool) -> str:
        """Return the page's heading for a single case or for several cases."""
        return (not single and self.several) or self.label or self.name

    def key(self, track: Track, entry: Entry) -> str:
        """Return the text by which the page sorts the cell; -1 for an unknown value."""
        value = (self.order or next(iter(self.data.values())))(track, entry)
        return f"{value:.5g}" if isinstance(value, float) else str(-1 if value is None else value)


def time(track: Track, entry: Entry) -> Summary | None:
    """Return the time of the track's first case, by the clock that ranks the case."""
    row = track.row(entry, track.cells[0])
    return ranked_times(row)["solution"] if row and row.gpu else None


def of_limit(row: Record | None) -> str:
    """Return a row's share of its limit, such as `94% of copy`, or a dash."""
    return f"{percentage(share(row))} of {limit(row)[1]}" if row else UNRANKED


def _share(track: Track, entry: Entry) -> str:
    """Return the share of the limit, the limit, the sustained share if known, and the case."""
    row = entry.worst_share
    steady = sustained_share(row) if row else None
    sustained = f", sustained {steady:.0%}" if steady else ""
    return of_limit(row) + (f"{sustained} ({where(row)})" if row else "")


COLUMNS = (
    Column(data={"op": lambda t, _: t.op, "track": lambda t, _: t.name}),
    Column(
        text=lambda t, e: str(e.rank or UNRANKED) if t.timed else "",
        data={"place": lambda _, e: e.rank},
        order=lambda _, e: e.rank or 9999,
        style="place",
        label="place",
    ),
    Column(
        "solution",
        text=lambda _, e: marked(e),
        data={"solution": lambda _, e: e.solution, "peer": lambda _, e: e.peer},
        style="name",
    ),
    Column(
        "× eager",
        text=lambda _, e: speed(e),
        data={
            "times_eager": lambda _, e: e.score and e.score.value,
            "low": lambda _, e: e.score and e.score.low,
            "high": lambda _, e: e.score and e.score.high,
        },
        style="speed",
        known=lambda track: track.timed,
    ),
    Column(
        "in a loop",
        text=lambda _, e: UNRANKED if e.in_loop is None else f"{e.in_loop:.2f}",
        data={"loop_times_eager": lambda _, e: e.in_loop},
        style="number",
        known=lambda track: track.timed and any(entry.in_loop for entry in track.entries),
        spare=4,
    ),
    Column(
        "median µs",
        order=lambda t, e: of_first.median if (of_first := time(t, e)) else 10**12,
        style="time",
        cases="one",
        known=lambda track: track.timed,
    ),
    Column(
        "worst share of limit",
        text=_share,
        short=lambda _, e: of_limit(e.worst_share),
        data={
            "share_of_limit": lambda _, e: e.worst_share and share(e.worst_share),
            "limited_case": lambda _, e: e.worst_share and e.worst_share.case,
            "limited_direction": lambda _, e: e.worst_share and e.worst_share.direction,
        },
        style="share",
        label="of limit",
        several="of limit, at worst",
        known=lambda track: track.timed,
        spare=2,
    ),
    Column(
        "peak memory",
        text=lambda _, e: size(e.peak_memory),
        data={"peak_memory": lambda _, e: e.peak_memory},
        style="number",
        known=lambda track: any(entry.peak_memory is not None for entry in track.entries),
        spare=5,
    ),
    Column(
        "covers",
        text=lambda t, e: f"{e.covered}/{len(t.cells)}",
        data={"covered": lambda _, e: e.covered, "cells": lambda t, _: len(t.cells)},
        style="number",
        cases="several",
        spare=1,
    ),
    Column(
        "error / eager's",
        text=lambda _, e: "" if e.error is None else f"{e.error:.2f}",
        data={"error": lambda _, e: e.error},
        style="number",
        spare=6,
    ),
    Column(data={"stale": lambda _, e: e.stale, "disturbed": lambda _, e: bool(e.disturbed)}),
    Column(
        "note",
        text=lambda _, e: e.lacks or e.about.note,
        data={"note": lambda _, e: e.about.note, "lacks": lambda _, e: e.lacks},
        style="note",
        spare=3,
    ),
)
"""The columns from left to right."""


# --- for a terminal and Markdown ------------------------------------------------------------------


def ranking(track: Track, short: bool = False) -> Table:
    """Return a row for each solution of a track; `short` has the texts of a terminal."""
    columns = [column for column in COLUMNS if column.text and column.known(track)]
    rows = tuple(tuple(c.cell(track, entry, short) for c in columns) for entry in track.entries)
    header = tuple(column.name for column in columns)
    return Table(track.title, header, rows, footnotes([track]), track.entries)


PLACES = ("first", "second", "third")
"""The headings of an op's solutions in the README."""


def summary(mains: Sequence[Track]) -> Table:
    """Return the README's table: for each op the fastest solutions of its main track."""
    shown = [replace(track, entries=track.entries[: len(PLACES)]) for track in mains]
    rows = []
    for track in shown:
        cells = [
            f"{marked(entry)} {f'{entry.score.value:.2f}' if entry.score else UNRANKED}"
            for entry in track.entries
        ]
        rows.append((track.op, track.name, *cells, *[""] * (len(PLACES) - len(cells))))
    return Table("", ("op", "track", *PLACES), tuple(rows), footnotes(shown))


# --- for scripts ----------------------------------------------------------------------------------


def rows(devices: Iterable[Device], only: str = "") -> Iterator[dict[str, Any]]:
    """Yield a row for each device, track and solution that `only` selects; all by default.

    `low` and `high` are the 95 % interval of `times_eager`. Memory is in bytes, and `error` in
    units of eager's own error. An unknown value is None.
    """
    fields = [field for column in COLUMNS for field in column.data.items()]
    for device in devices:
        for track in device.tracks.values():
            for entry in track.entries:
                if not only or is_among(entry.solution, only):
                    values = {name: value(track, entry) for name, value in fields}
                    yield {"device": device.name} | values
