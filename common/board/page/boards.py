"""The boards of the page: each track of each device, its choices of cells, and its charts."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from common.board.columns import COLUMNS, Column
from common.board.devices import Device
from common.board.page.rendering import link
from common.board.plots.sweeps import Panel, Plot
from common.board.ranking import LIMITS, Entry, Estimate, Track, rank, ranked_times
from common.records.lines import Record

Choice = tuple[str, str]
"""A direction and a case; an empty text stands for all of them."""
ALL: Choice = ("", "")


@dataclass(frozen=True, eq=False)
class Board:
    """A track of a device."""

    device: Device
    track: Track

    @cached_property
    def choices(self) -> dict[Choice, Track]:
        """The ranking of each choice that has a row.

        >>> list(board.choices)
        [('', ''), ('', 'c1'), ('forward', ''), ('forward', 'c1')]
        """
        choices: dict[Choice, list[Record]] = {
            (direction, case): []
            for direction in ("", *self.track.directions)
            for case in ("", *dict(self.track.cells))
        }
        for row in self.device.rows:
            if (row.op, row.track) == (self.track.op, self.track.name):
                for choice in itertools.product(("", row.direction), ("", row.case)):
                    choices[choice].append(row)
        return {
            choice: rank(rows, self.device.about, self.device.timed)[0]
            for choice, rows in choices.items()
            if rows
        }

    @property
    def fields(self) -> dict[str, str]:
        """The fields of the address of the board's view."""
        track = self.track
        return {"view": "board", "device": self.device.slug, "op": track.op, "track": track.name}

    @property
    def address(self) -> str:
        """The address of the board's view, as `page.js` makes it of the fields."""
        return " ".join(self.fields.values())

    def link(self, choice: Choice = ALL, row: str = "") -> str:
        """Return the link to the board, to a choice of its cells, or to a solution's row."""
        return link(**self.fields, direction=choice[0], case=choice[1], row=row)

    def tabs(self, boards: Sequence[Board]) -> dict[str, dict[str, Board]]:
        """Return the board behind each tab: the one with the most in common with this one."""
        tabs = {}
        for kind, label_of in TABS.items():
            nearest = sorted(
                boards, key=lambda b: (b.device is not self.device, b.track.name != self.track.name)
            )
            behind = {label_of(board): board for board in reversed(nearest)}
            tabs[kind] = {label: behind[label] for label in dict.fromkeys(map(label_of, boards))}
            boards = [board for board in boards if label_of(board) == label_of(self)]
        return tabs


def columns(track: Track, single: bool) -> list[Column]:
    """Return the columns of a ranking by a single case and direction, or by several."""
    unfit = "several" if single else "one"
    shown = (column for column in COLUMNS if column.style and column.cases != unfit)
    return [column for column in shown if column.known(track)]


TABS: Mapping[str, Callable[[Board], str]] = {
    "Op": lambda board: board.track.op,
    "Device": lambda board: board.device.name,
    "Track": lambda board: board.track.name,
}
"""The label of a board's tab in each row of tabs."""


# --- charts, which the browser draws --------------------------------------------------------------


@dataclass(frozen=True)
class Series:
    """One solution's medians with intervals, one for each x of the chart; None without a time."""

    name: str
    peer: bool
    values: Sequence[Estimate | None]


@dataclass(frozen=True)
class Chart:
    """One pair of axes."""

    title: str
    x_label: str
    y_label: str
    x: Sequence[str] | Sequence[float]
    series: Sequence[Series]
    log_x: bool = False
    log_y: bool = True


def times(track: Track, direction: str) -> Chart:
    """Return every solution's medians in the cases of a direction, by the clock that ranks."""
    cells = [cell for cell in track.cells if cell[1] == direction]
    series = []
    for entry in track.entries:
        rows = [track.row(entry, cell) for cell in cells]
        times = [Estimate.of(ranked_times(row)["solution"]) if row and row.gpu else None
                 for row in rows]  # fmt: skip
        if any(times):
            series.append(Series(entry.solution, entry.peer, times))
    return Chart("", "", "µs", [case for case, _ in cells], series)


def against(track: Track, label: str, of: Callable[[Entry], float | None]) -> Chart:
    """Return a point for each ranked entry: its speed over the value that `of` returns."""
    ranked = [(x, entry) for entry in track.entries if entry.score and (x := of(entry)) is not None]
    places = sorted({x for x, _ in ranked})
    series = [
        Series(entry.solution, entry.peer, [entry.score if at == x else None for at in places])
        for x, entry in ranked
    ]
    return Chart("", label, "× eager", places, series, log_y=False)


def swept(plot: Plot, panel: Panel) -> Chart:
    """Return the chart of a plot's panel."""
    sweep = plot.sweep
    x = sorted({number for line in panel.lines.values() for number in line})
    series = [
        Series(name, name in plot.peers or name in LIMITS, [line.get(value) for value in x])
        for name, line in panel.lines.items()
    ]
    return Chart(
        f"{sweep.title}, {panel.title}", sweep.x_label, panel.y_label, x, series,
        log_x=sweep.log2, log_y=not sweep.rates,
    )  # fmt: skip
