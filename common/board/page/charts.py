"""The data of the page's plots, which the browser draws."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from common.board.plots.sweeps import Panel, Plot
from common.board.ranking import Entry, Estimate, Track, ranked_times


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
        times = [ranked_times(row)["solution"] if row and row.gpu else None for row in rows]
        if any(times):
            values = [Estimate.of(time) if time else None for time in times]
            series.append(Series(entry.solution, entry.peer, values))
    return Chart("", "", "µs", [case for case, _ in cells], series)


def against(track: Track, label: str, of: Callable[[Entry], float | None]) -> Chart:
    """Return a point for each ranked entry: its speed over the value that `of` returns."""
    at = {entry.solution: x for entry in track.entries if (x := of(entry)) is not None}
    ranked = [entry for entry in track.entries if entry.score and entry.solution in at]
    places = sorted({at[entry.solution] for entry in ranked})
    series = [
        Series(e.solution, e.peer, [e.score if at[e.solution] == x else None for x in places])
        for e in ranked
    ]
    return Chart("", label, "× eager", places, series, log_y=False)


def swept(plot: Plot, panel: Panel) -> Chart:
    """Return the chart of a plot's panel."""
    sweep, lines = plot.sweep, {**panel.lines, **panel.limits}
    x = sorted({number for line in lines.values() for number in line})
    series = [
        Series(name, name in plot.peers or name in panel.limits, [line.get(value) for value in x])
        for name, line in lines.items()
    ]
    return Chart(
        f"{sweep.title}, {panel.title}", sweep.x_label, panel.y_label, x, series,
        log_x=sweep.log2, log_y=not sweep.rates,
    )  # fmt: skip
