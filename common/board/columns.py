"""The columns of a board, declared once for the terminal, Markdown, JSON, CSV and the page.

A new column is one more entry of `COLUMNS`:

    Column("launches", text=lambda s: str(s.entry.launches), order=lambda s: s.entry.launches,
           data={"launches": lambda s: s.entry.launches}, style="number")
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from common.board.devices import Device
from common.board.ranking import Entry, Track, limit, ranked_times, share, sustained_share
from common.board.table import (
    UNRANKED,
    About,
    Table,
    cut,
    footnotes,
    marked,
    percent,
    size,
    speed,
    stale,
    where,
)
from common.records.lines import Summary
from common.solutions import is_among


@dataclass(frozen=True)
class Standing:
    """A solution in one track of a device: the data of a board's row."""

    track: Track
    entry: Entry
    about: Mapping[str, About]
    timed: bool
    """Whether the entries are ranked."""
    device: str = ""

    @property
    def note(self) -> str:
        """The solution's note; empty if the solution is not in this tree."""
        known = self.about.get(self.entry.solution)
        return known.note if known else ""

    @property
    def stale(self) -> bool:
        """Whether the source has changed since the measurement."""
        return stale(self.entry, self.about)

    @property
    def time(self) -> Summary | None:
        """The time of the track's first case, by the clock that ranks the case."""
        row = self.track.row(self.entry, self.track.cells[0])
        return ranked_times(row)["solution"] if row and row.gpu else None


Value = Callable[[Standing], Any]
Text = Callable[[Standing], str]


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
    """The fields of JSON and CSV; None for an unknown value."""
    order: Value = lambda standing: standing.entry.rank
    """The page's sort key, a number or a name."""
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
    timed: bool = False
    """Whether only boards with timed solutions have the column."""
    spare: int = 0
    """A narrow terminal omits the column with the greatest number first, and never omits 0."""

    def cell(self, standing: Standing, short: bool = False) -> str:
        """Return the text of a cell."""
        write = (self.short if short else None) or self.text
        return write(standing) if write else ""

    def heading(self, single: bool) -> str:
        """Return the page's heading for a single case or for several cases."""
        return self.label or self.name if single else self.several or self.label or self.name

    def key(self, standing: Standing) -> str:
        """Return the text by which the page sorts the cell."""
        value = self.order(standing)
        return f"{value:.5g}" if isinstance(value, float) else str(value)


def _score(name: Literal["value", "low", "high"]) -> Value:
    return lambda s: s.entry.score and getattr(s.entry.score, name)


def _share(standing: Standing) -> str:
    """Return the share of the limit, the limit, the sustained share if known, and the case."""
    row = standing.entry.worst_share
    if row is None:
        return UNRANKED
    steady = sustained_share(row)
    return (
        _of_limit(standing) + (f", sustained {steady:.0%}" if steady else "") + f" ({where(row)})"
    )


def _of_limit(standing: Standing) -> str:
    row = standing.entry.worst_share
    return f"{percent(standing.entry)} of {limit(row)[1]}" if row else UNRANKED


PLACE = Column(
    text=lambda s: str(s.entry.rank or UNRANKED) if s.timed else "",
    data={"place": lambda s: s.entry.rank},
    order=lambda s: s.entry.rank or 9999,
    style="place",
    label="place",
)
SOLUTION = Column(
    "solution",
    text=lambda s: marked([s.entry], s.about, s.timed),
    data={"solution": lambda s: s.entry.solution, "peer": lambda s: s.entry.peer},
    order=lambda s: s.entry.solution,
    style="name",
)
SPEED = Column(
    "× eager",
    text=lambda s: speed(s.entry),
    data={"times_eager": _score("value"), "low": _score("low"), "high": _score("high")},
    order=lambda s: s.entry.score.value if s.entry.score else -1,
    style="speed",
    timed=True,
)
LOOP = Column(
    "in a loop",
    text=lambda s: UNRANKED if s.entry.in_loop is None else f"{s.entry.in_loop:.2f}",
    data={"loop_times_eager": lambda s: s.entry.in_loop},
    order=lambda s: s.entry.in_loop or -1,
    style="number",
    known=lambda track: any(entry.in_loop for entry in track.entries),
    timed=True,
    spare=4,
)
TIME = Column(
    "median µs",
    order=lambda s: s.time.median if s.time else 10**12,
    style="time",
    cases="one",
    timed=True,
)
LIMIT = Column(
    "worst share of limit",
    text=_share,
    short=_of_limit,
    data={
        "share_of_limit": lambda s: s.entry.worst_share and share(s.entry.worst_share),
        "limited_case": lambda s: s.entry.worst_share and s.entry.worst_share.case,
        "limited_direction": lambda s: s.entry.worst_share and s.entry.worst_share.direction,
    },
    order=lambda s: share(s.entry.worst_share) if s.entry.worst_share else -1,
    style="share",
    label="of limit",
    several="of limit, at worst",
    timed=True,
    spare=2,
)
MEMORY = Column(
    "peak memory",
    text=lambda s: size(s.entry.peak_memory),
    data={"peak_memory": lambda s: s.entry.peak_memory},
    order=lambda s: -1 if s.entry.peak_memory is None else s.entry.peak_memory,
    style="number",
    known=lambda track: any(entry.peak_memory is not None for entry in track.entries),
    spare=5,
)
COVERS = Column(
    "covers",
    text=lambda s: f"{s.entry.covered}/{len(s.track.cells)}",
    data={"covered": lambda s: s.entry.covered, "cells": lambda s: len(s.track.cells)},
    order=lambda s: s.entry.covered,
    style="number",
    cases="several",
    spare=1,
)
ERROR = Column(
    "error / eager's",
    text=lambda s: "" if s.entry.error is None else f"{s.entry.error:.2f}",
    data={"error": lambda s: s.entry.error},
    order=lambda s: -1 if s.entry.error is None else s.entry.error,
    style="number",
    spare=6,
)
NOTE = Column(
    "note",
    text=lambda s: s.entry.lacks or s.note,
    short=lambda s: s.entry.lacks or cut(s.note),
    data={"note": lambda s: s.note, "lacks": lambda s: s.entry.lacks},
    order=lambda s: s.note,
    style="note",
    spare=3,
)
COLUMNS = (
    Column(
        data={
            "device": lambda s: s.device,
            "op": lambda s: s.track.op,
            "track": lambda s: s.track.name,
        }
    ),
    PLACE, SOLUTION, SPEED, LOOP, TIME, LIMIT, MEMORY, COVERS, ERROR,
    Column(data={"stale": lambda s: s.stale, "disturbed": lambda s: bool(s.entry.disturbed)}),
    NOTE,
)  # fmt: skip
"""The columns from left to right."""


# --- for a terminal and Markdown ------------------------------------------------------------------


def ranking(
    track: Track, about: Mapping[str, About], timed: bool, short: Container[Column] = ()
) -> Table:
    """Return a row for each solution of a track.

    Args:
        track: The track.
        about: The facts of the solutions; a missing solution has no note.
        timed: Whether the entries are ranked.
        short: The columns with a terminal's `short` texts.
    """
    columns = [
        column
        for column in COLUMNS
        if column.text and column.known(track) and (timed or not column.timed)
    ]
    standings = [Standing(track, entry, about, timed) for entry in track.entries]
    rows = tuple(tuple(c.cell(standing, c in short) for c in columns) for standing in standings)
    notes = footnotes([track], about, timed)
    header = tuple(column.name for column in columns)
    return Table(f"{track.op}: {track.name}", header, rows, notes, track.entries)


PLACES = ("first", "second", "third")
"""The headings of an op's solutions in the README."""


def summary(mains: Sequence[Track], about: Mapping[str, About]) -> Table:
    """Return the README's table: for each op the fastest solutions of its main track.

    Args:
        mains: The main track of each op.
        about: The facts of the solutions, which show stale entries.
    """
    shown = [replace(track, entries=track.entries[: len(PLACES)]) for track in mains]
    rows = []
    for track in shown:
        cells = [
            f"{marked([entry], about, timed=True)} "
            + (f"{entry.score.value:.2f}" if entry.score else UNRANKED)
            for entry in track.entries
        ]
        rows.append((track.op, track.name, *cells, *[""] * (len(PLACES) - len(cells))))
    notes = footnotes(shown, about, timed=True)
    return Table(SPEED.name, ("op", "track", *PLACES), tuple(rows), notes)


# --- for scripts ----------------------------------------------------------------------------------

FIELDS = [name for column in COLUMNS for name in column.data]
"""The names of a row's fields.

`low` and `high` are the 95 % interval of `times_eager`. Memory is in bytes, and `error` in units of
eager's own error. An unknown value is None.
"""


def rows(
    devices: Iterable[Device], about: Mapping[str, About], only: str = ""
) -> Iterator[dict[str, Any]]:
    """Yield a row for each device, track and solution that `only` selects; all by default."""
    for device in devices:
        for track in device.tracks.values():
            for entry in track.entries:
                if not only or is_among(entry.solution, only):
                    standing = Standing(track, entry, about, device.results.timed, device.name)
                    yield {
                        name: value(standing)
                        for column in COLUMNS
                        for name, value in column.data.items()
                    }


TIMES: Mapping[str, Sequence[str]] = {
    "gpu": ("solution", "backward", "graph", "eager", "copy", "dense"),
    "host": ("solution", "no_grad", "eager"),
    "loop": ("solution", "eager", "dense"),
}
"""The times of a row by clock; `loop` is `Record.sustained`."""
CASE_FIELDS = [
    "device",
    "op",
    "track",
    "case",
    "direction",
    "solution",
    "peer",
    "verdict",
    "ranked_by",
    "peak_memory",
    *(f"{clock}_{name}" for clock, names in TIMES.items() for name in names),
]
"""The names of the fields of a case: medians in microseconds, memory in bytes."""


def cases(devices: Iterable[Device], only: str = "") -> Iterator[dict[str, Any]]:
    """Yield a row for each device, track, solution, case and direction that `only` selects.

    As on every board, rows that an earlier version of the clock measured are left out.
    """
    for device in devices:
        for track in device.tracks.values():
            for entry in track.entries:
                if only and not is_among(entry.solution, only):
                    continue
                for cell in track.cells:
                    if row := track.row(entry, cell):
                        facts = (
                            device.name,
                            row.op,
                            row.track,
                            *cell,
                            row.solution,
                            row.peer,
                            row.verdict,
                            row.ranked_by,
                            row.peak_memory,
                        )
                        times = (_medians(row.gpu), _medians(row.host), row.sustained)
                        medians = (
                            of_clock.get(name)
                            for of_clock, names in zip(times, TIMES.values(), strict=True)
                            for name in names
                        )
                        yield dict(zip(CASE_FIELDS, (*facts, *medians), strict=True))


def _medians(times: Mapping[str, Summary]) -> dict[str, float]:
    return {name: summary.median for name, summary in times.items()}


def as_json(rows: Iterable[Mapping[str, Any]]) -> str:
    """Return the rows as a JSON list of objects."""
    return json.dumps(list(rows), indent=1, ensure_ascii=False) + "\n"


def as_csv(rows: Iterable[Mapping[str, Any]], fields: Sequence[str] = FIELDS) -> str:
    """Return the rows as CSV with a header."""
    text = io.StringIO()
    writer = csv.DictWriter(text, fields, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
