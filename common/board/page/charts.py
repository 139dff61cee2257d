"""The data of the page's plots, which the browser draws.

A chart has x values, either names or numbers. Each solution has a series of medians with intervals,
one for each x; None where the solution has no time.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from common.board.page.views import Histories, Point
from common.board.plots.sweeps import Panel, Plot
from common.board.ranking import Entry, Estimate, Track, ranked_times

DIGITS = 4
"""Significant digits: more than a plot can show."""


Series = Mapping[str, Any]


def _series(name: str, peer: bool, values: Sequence[Estimate | None]) -> Series:
    """Return one solution's values as JSON data."""
    bounds = {
        bound: [estimate and float(f"{getattr(estimate, bound):.{DIGITS}g}") for estimate in values]
        for bound in ("value", "low", "high")
    }
    return {"name": name, "peer": peer, **bounds}


@dataclass(frozen=True)
class Chart:
    """One pair of axes."""

    title: str
    x_label: str
    y_label: str
    x: Sequence[str] | Sequence[float]
    """Names or numbers; with `dates`, seconds since 1970."""
    series: Sequence[Series]
    log_x: bool = False
    log_y: bool = True
    dates: bool = False

    def json(self, hues: Mapping[str, int]) -> str:
        """Return the chart as JSON; a solution has the same hue in every chart."""
        fields = {name: getattr(self, name) for name in
                  ("title", "x_label", "y_label", "log_x", "log_y", "dates")}  # fmt: skip
        series = [{**one_series, "hue": hues.get(one_series["name"])} for one_series in self.series]
        named = bool(self.x) and isinstance(self.x[0], str)
        axis = {"names": list(self.x)} if named else {"x": list(self.x)}
        return msgspec.json.encode({**fields, **axis, "series": series}).decode()


def times(track: Track, direction: str) -> Chart:
    """Return every solution's medians in the cases of a direction, by the clock that ranks."""
    cells = [cell for cell in track.cells if cell[1] == direction]
    series = []
    for entry in track.entries:
        rows = [track.row(entry, cell) for cell in cells]
        values = [Estimate.of(ranked_times(row)["solution"]) if row and row.gpu else None
                  for row in rows]  # fmt: skip
        if any(values):
            series.append(_series(entry.solution, entry.peer, values))
    return Chart("", "", "µs", [case for case, _ in cells], series)


def history(points: Mapping[str, Sequence[Point]]) -> Chart:
    """Return a solution's speed in all runs, a series for each track."""
    moments = sorted({point.when.timestamp() for track in points.values() for point in track})
    series = []
    for track, of_track in points.items():
        scores = {point.when.timestamp(): point.score for point in of_track}
        series.append(_series(track, False, [scores.get(moment) for moment in moments]))
    return Chart("", "", "× eager", moments, series, log_y=False, dates=True)


def record(histories: Histories) -> Chart:
    """Return every solution's speed in each run of a track, and the best speed up to each run."""
    moments = sorted({point.when.timestamp() for points in histories.values() for point in points})
    series, best = [], dict[float, Estimate]()
    for name, points in histories.items():
        scores = {point.when.timestamp(): point.score for point in points}
        series.append(_series(name, False, [scores.get(moment) for moment in moments]))
        for moment, score in scores.items():
            best[moment] = max(score, best.get(moment, score), key=_value)
    so_far = itertools.accumulate(
        (best[moment] for moment in moments), lambda *scores: max(scores, key=_value)
    )
    exact = [Estimate(score.value, score.value, score.value) for score in so_far]
    series = [_series(RECORD, True, exact), *series]
    return Chart("", "", "× eager", moments, series, log_y=False, dates=True)


RECORD = "record"
"""The name of the line of the best speed up to a run."""


def _value(score: Estimate) -> float:
    return score.value


def against(track: Track, label: str, of: Callable[[Entry], float | None]) -> Chart:
    """Return a point for each ranked entry: its speed over the value that `of` returns."""
    entries = [
        (entry, x) for entry in track.entries if entry.score and (x := of(entry)) is not None
    ]
    places = sorted({value for _, value in entries})
    series = [
        _series(
            entry.solution,
            entry.peer,
            [entry.score if place == value else None for place in places],
        )
        for entry, value in entries
    ]
    return Chart("", label, "× eager", places, series, log_y=False)


def swept(plot: Plot) -> list[Chart]:
    """Return a chart for each panel of a plot."""
    return [_panel(plot, panel) for panel in plot.panels]


def _panel(plot: Plot, panel: Panel) -> Chart:
    lines = {**panel.lines, **panel.limits}
    x = sorted({number for line in lines.values() for number in line})
    series = [
        _series(name, name in plot.peers or name in panel.limits, [line.get(value) for value in x])
        for name, line in lines.items()
    ]
    return Chart(
        f"{plot.sweep.title}, {panel.title}", plot.sweep.x_label, panel.y_label, x, series,
        log_x=plot.sweep.log2, log_y=not plot.sweep.rates,
    )  # fmt: skip
