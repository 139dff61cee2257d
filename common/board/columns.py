"""The columns of a table, declared once for the terminal, Markdown, JSON and the page.

Each quantity that a track has is a column with places of its own; the others state facts.

A new column is one more entry of `COLUMNS`:

    Column("launches", text=lambda track, entry: str(entry.launches),
           data={"launches": lambda track, entry: entry.launches}, style="number")
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from common.board.devices import Device
from common.board.ranking import QUANTITIES, Entry, Quantity, Track, limit, share
from common.board.table import UNRANKED, Table, figure, footnotes, marked, percentage
from common.records.lines import Estimate, Record
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
    style: Literal["", "name", "quantity", "number"] = ""
    """The page's style of the cells; the page omits a column without a style."""
    quantity: Quantity | None = None
    """What the column ranks by, if it has places."""
    known: Callable[[Track], bool] = lambda track: True
    """Return whether a board of the track has the column."""
    spare: int = 0
    """A narrow terminal omits the column with the greatest number first, and never omits 0."""

    def cell(self, track: Track, entry: Entry, short: bool = False) -> str:
        """Return the text of a cell."""
        write = (self.short if short else None) or self.text
        return write(track, entry) if write else ""

    def key(self, track: Track, entry: Entry) -> str:
        """Return the text by which the page sorts the cell; -1 for an unknown value."""
        value = (self.order or next(iter(self.data.values())))(track, entry)
        return f"{value:.5g}" if isinstance(value, float) else str(-1 if value is None else value)


def place(track: Track, entry: Entry, quantity: Quantity) -> str:
    """Return the place by a quantity, such as `2`, `2=` for a tie, or a dash."""
    if quantity not in entry.scores:
        return UNRANKED
    ranks = [each.scores[quantity].rank for each in track.placed(quantity)]
    own = entry.scores[quantity].rank
    return f"{own}{'=' * (ranks.count(own) > 1)}"


def time(entry: Entry, quantity: Quantity) -> Estimate | None:
    """Return the solution's time of the one case that the entry is of."""
    found = [times["solution"] for row in entry.cells.values() if (times := quantity.times(row))]
    return found[0] if found else None


def of_limit(row: Record | None) -> str:
    """Return a row's share of its limit, such as `94% of copy`, or a dash."""
    return f"{percentage(share(row))} of {limit(row)[1]}" if row else UNRANKED


def _ranks_by(quantity: Quantity, spare: int) -> Column:
    """Return the column of a quantity: the place, the figure that ranks, the multiple of eager."""

    def text(track: Track, entry: Entry) -> str:
        score = entry.scores.get(quantity)
        if not score:
            return UNRANKED
        eager = f", {score.eager:.2f}×" if score.of_limit else ""
        runs = f" ({score.runs} runs)" if score.runs > 1 else ""
        return f"{place(track, entry, quantity)}. {figure(score)}{runs}{eager}"

    def short(track: Track, entry: Entry) -> str:
        score = entry.scores.get(quantity)
        return f"{place(track, entry, quantity)}. {figure(score)}" if score else UNRANKED

    def order(_: Track, entry: Entry) -> float:
        score = entry.scores.get(quantity)
        return -score.main.value if score else 9999

    return Column(
        quantity.name, text, short, order=order, style="quantity", quantity=quantity,
        known=lambda track: quantity in track.quantities, spare=spare,
    )  # fmt: skip


def _scores(track: Track, entry: Entry) -> dict[str, dict[str, Any]]:
    return {
        quantity.name: {
            "place": score.rank,
            "share": score.main.value if score.of_limit else None,
            "times_eager": score.eager,
            **dict(zip(("low", "high"), score.main.interval or (None, None), strict=True)),
            "runs": score.runs,
        }
        for quantity, score in entry.scores.items()
    }


COLUMNS = (
    Column(data={"op": lambda t, _: t.op, "track": lambda t, _: t.name}),
    Column(
        "solution",
        text=lambda _, e: marked(e),
        data={"solution": lambda _, e: e.solution, "peer": lambda _, e: e.peer},
        style="name",
    ),
    *map(_ranks_by, QUANTITIES, (1, 0, 4, 5, 7, 8, 9, 10)),
    Column(data={"columns": _scores}),
    Column(
        "covers",
        text=lambda t, e: f"{e.covered}/{len(t.cells)}",
        data={"covered": lambda _, e: e.covered, "cells": lambda t, _: len(t.cells)},
        style="number",
        spare=2,
    ),
    Column(
        "error / eager's",
        text=lambda _, e: "" if e.error is None else f"{e.error:.2f}",
        data={"error": lambda _, e: e.error},
        style="number",
        spare=10,
    ),
    Column(data={"stale": lambda _, e: e.stale, "disturbed": lambda _, e: bool(e.disturbed)}),
    Column(
        "note",
        text=lambda _, e: e.lacks or e.about.note,
        data={"note": lambda _, e: e.about.note, "lacks": lambda _, e: e.lacks},
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
    return Table(track.title, header, rows, tuple(footnotes([track])), track.entries)


PLACES = ("first", "second", "third")
"""The headings of a column's solutions in the README."""


def summary(mains: Sequence[Track]) -> Table:
    """Return the README's table: the first of each column of the main tracks, and who ties."""
    rows, shown = [], []
    for track in mains:
        for quantity in track.quantities:
            best = track.placed(quantity)[: len(PLACES)]
            cells = [_placed(track, entry, quantity) for entry in best]
            cells += [""] * (len(PLACES) - len(cells))
            rows.append((track.op, quantity.name, *cells))
            shown.append(replace(track, entries=tuple(best)))
    return Table("", ("op", "column", *PLACES), tuple(rows), tuple(footnotes(shown)))


def _placed(track: Track, entry: Entry, quantity: Quantity) -> str:
    """Return the name and the figure, after the place if others share it."""
    own, value = place(track, entry, quantity), figure(entry.scores[quantity], False)
    return f"{own} " * own.endswith("=") + f"{marked(entry)} {value}"


# --- for scripts ----------------------------------------------------------------------------------


def rows(devices: Iterable[Device], only: str = "") -> Iterator[dict[str, Any]]:
    """Yield a row for each device, track and solution that `only` selects; all by default.

    `low` and `high` are the 95 % interval of the figure that ranks; `error` is in units of eager's
    own error. An unknown value, such as the interval of a loop in one run, is None.
    """
    fields = [field for column in COLUMNS for field in column.data.items()]
    for device in devices:
        for track in device.tracks.values():
            for entry in track.entries:
                if not only or is_among(entry.solution, only):
                    values = {name: value(track, entry) for name, value in fields}
                    yield {"device": device.name} | values
