"""The plots of sweeps: their data, and their drawing as SVG files with matplotlib.

The plots show the records of the tier `plot`. A sweep of `sweeps.toml` selects its cases by their
parameters: `rope-bandwidth` has the cases with b 1, h 8 and d 256, and its x is s. A line is a
solution's share of the limit that was timed beside it, with its 95 % interval at each x: so lines
of several runs can stand beside each other, whose limits differ.

The same records give the same bytes. A file contains the fingerprint of its data and code, and is
drawn again only when the fingerprint changes: drawing a figure takes most of a second.

A folder has the same colour on every plot, and no two share one; its further files have other
markers. Peers are dashed. The background is white, so that the plots are legible on a dark page.
"""

from __future__ import annotations

import colorsys
import hashlib
import math
import textwrap
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from common.board.devices import Device
from common.board.ranking import DIRECTION, Estimate, combined, slower_limit
from common.digest import digest
from common.records.lines import Record


@dataclass(frozen=True)
class SweepPlot:
    """Cases whose parameters equal `where`, apart from the parameter on the x axis."""

    name: str
    op: str
    title: str
    x_label: str
    x: str
    where: Mapping[str, Any]
    log2: bool = True
    """Whether the x axis is logarithmic."""
    default: int = 1
    """The x of a case without this parameter."""

    def has(self, row: Record) -> bool:
        """Return whether the row's case is on the sweep."""
        own = {name: value for name, value in _params(row).items() if name != self.x}
        return row.op == self.op and own == self.where


Lines = Mapping[str, Mapping[int, Estimate]]
"""The share of the limit of each solution, by x."""


@dataclass(frozen=True)
class Plot:
    """The plot of one file."""

    sweep: SweepPlot
    panels: Mapping[str, Lines]
    """The lines on each pair of axes, by its title."""
    peers: tuple[str, ...]
    missing: Mapping[str, str]
    """The verdicts of the solutions without a line."""


def _params(row: Record) -> Mapping[str, Any]:
    """Return the case's parameters, with its rows and its width in place of its shape, if any."""
    params = dict(row.params)
    if shape := params.pop("shape", None):
        params |= {"rows": math.prod(shape[:-1]), "width": shape[-1]}
    return params


def _sweeps(rows: Iterable[Record]) -> Iterator[SweepPlot]:
    """Yield the sweeps of the file, and one for each op whose plotted cases have a shape."""
    text = Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")
    for name, fields in tomllib.loads(text).items():
        yield SweepPlot(name, **fields)
    shaped = {row.op: _params(row) for row in rows if "shape" in row.params}
    for op, params in shaped.items():
        where = {name: params[name] for name in ("dtype", "width")}
        label = f"rows (of {params['width']} elements, {params['dtype']})"
        yield SweepPlot(
            f"{op}-rows", op, f"{op}: time over the number of rows", label, "rows", where
        )


# --- the data -------------------------------------------------------------------------------------


def of_device(device: Device) -> list[Plot]:
    """Return the plots of a device's rows, timed and failed, of the known solutions."""
    return plots([row for row in device.results.latest("plot") if row.solution in device.about])


def plots(rows: Sequence[Record]) -> list[Plot]:
    """Return the plots with at least one timed row; only the latest version of the clock counts."""
    plots = []
    for sweep in _sweeps(rows):
        own = [row for row in rows if sweep.has(row)]
        clock = max((row.clock for row in own if row.gpu), default=0)
        own = [row for row in own if not row.gpu or row.clock == clock]
        # rows of another sweep may belong to this sweep too
        if any(row.gpu and sweep.x in _params(row) for row in own):
            lines = {words: _lines(sweep, own, each) for each, words in DIRECTION.items()}
            panels = {title: of for title, of in lines.items() if of}
            drawn = {name for panel in panels.values() for name in panel}
            peers = tuple(sorted({row.solution for row in own if row.peer}))
            failed = [row for row in own if row.solution not in drawn and row.verdict != "PASSED"]
            missing = {row.solution: row.verdict for row in reversed(failed)}
            plots.append(Plot(sweep, panels, peers, missing))
    return plots


def _lines(sweep: SweepPlot, rows: Iterable[Record], direction: str) -> Lines:
    """Return the shares of the limit of each solution with a time, by x."""
    found: dict[str, dict[int, Estimate]] = defaultdict(dict)
    for row in rows:
        if row.direction == direction and row.gpu:
            times = row.gpu[slower_limit(row.gpu)], row.gpu["solution"]
            found[row.solution][int(_params(row).get(sweep.x, sweep.default))] = combined([times])
    return {name: dict(sorted(line.items())) for name, line in found.items()}


# --- the look -------------------------------------------------------------------------------------

MARKERS = "osD^vPX*"
INK, FAINT, GRID = "#222222", "#6a6a6a", "#e3e3e3"
STYLE: Any = {
    "axes.axisbelow": True, "axes.edgecolor": "#9a9a9a", "axes.labelcolor": INK,
    "axes.spines.right": False, "axes.spines.top": False, "figure.dpi": 72,
    "font.family": "DejaVu Sans", "font.size": 9.5, "svg.fonttype": "path",
    "svg.hashsalt": "study", "text.color": INK, "xtick.color": FAINT, "xtick.labelsize": 8.5,
    "ytick.color": FAINT, "ytick.labelsize": 8.5,
}  # fmt: skip
Look = dict[str, Any]
"""Matplotlib's options for a line."""


def looks(drawn: Sequence[Plot]) -> dict[str, Look]:
    """Return the look of each solution on the plots; a peer's lines are dashed, its markers hollow.

    Folders get a colour and a marker in alphabetical order. Further files of an op in the same
    folder get the next marker.
    """
    ops = {name: plot.sweep.op for plot in drawn for of in plot.panels.values() for name in of}
    peers = {name for plot in drawn for name in plot.peers}
    folders = list(dict.fromkeys(name.partition("/")[0] for name in sorted(ops)))
    looks: dict[str, Look] = {}
    for name in sorted(ops):
        place = folders.index(name.partition("/")[0])
        siblings = [o for o in looks if ops[o] == ops[name] and o.startswith(folders[place] + "/")]
        # steps of the golden ratio never meet
        colour = colorsys.hls_to_rgb(place * 0.618 % 1, (0.35, 0.45, 0.28)[place % 3], 0.7)
        looks[name] = {
            "color": colour, "linewidth": 1.7, "markersize": 5, "markeredgewidth": 1.2,
            "marker": MARKERS[(place + len(siblings)) % len(MARKERS)], "label": name,
        }  # fmt: skip
        if name in peers:
            looks[name] |= {"linestyle": (0, (4, 1.6)), "linewidth": 1.3, "label": f"({name})"}
            looks[name] |= {"markerfacecolor": "white"}
    return looks


# --- the files ------------------------------------------------------------------------------------


def draw_due(device: Device, folder: Path) -> Iterator[Path]:
    """Draw each file, `folder/<name>.svg`, that is missing or out of date, and yield its path."""
    drawn = of_device(device)
    look = looks(drawn)
    code = digest([Path(__file__)]), metadata.version("matplotlib")
    for plot in drawn:
        data = repr((plot, sorted(look.items()), device.name, code))
        mark = hashlib.sha256(data.encode()).hexdigest()[:16]
        path = folder / f"{plot.sweep.name}.svg"
        if not (path.exists() and mark in path.read_text()):
            draw(plot, look, device.name, path, mark)
            yield path


def draw(plot: Plot, look: Mapping[str, Look], device: str, path: Path, mark: str) -> None:
    """Draw a file with a fingerprint in its metadata; create its folder if it is missing."""
    import matplotlib

    path.parent.mkdir(parents=True, exist_ok=True)
    svg_metadata = {"Date": None, "Identifier": mark}
    with matplotlib.rc_context(STYLE):
        figure = _figure(plot, look, device)
        # bbox_inches="tight" would draw the figure twice
        bounds = figure.get_tightbbox().padded(0.1)
        figure.savefig(path, format="svg", metadata=svg_metadata, bbox_inches=bounds)


def _figure(plot: Plot, look: Mapping[str, Look], device: str) -> Any:
    """Return a matplotlib figure with the plot's panels side by side, and the legend."""
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    count = len(plot.panels)
    width, height = count * (6.6 if count == 1 else 4.7) + 1, 5.5
    figure = Figure(figsize=(width, height), facecolor="white")
    FigureCanvasSVG(figure)  # the canvas measures the figure's texts
    row = figure.subplots(1, count, squeeze=False)[0]
    figure.subplots_adjust(
        left=0.7 / width, right=0.99, wspace=0.22, bottom=0.7 / height, top=1 - 0.9 / height
    )
    for axes, (title, lines) in zip(row, plot.panels.items(), strict=True):
        _panel(axes, title, lines, plot, look)
    _legend(row[-1], plot, look)

    def text(inches: float, words: str, **options: Any) -> None:
        figure.text(0.7 / width, inches / height, words, va="top", **options)

    text(height - 0.12, plot.sweep.title, fontsize=13, fontweight="bold")
    subtitle = f"{device} · by GPU time, of the limit timed in the same run: the dashed line"
    text(height - 0.39, subtitle, fontsize=9, color=FAINT)
    text(0.3, plot.sweep.x_label, fontsize=9.5)
    if plot.missing:
        verdicts = (f"{name}: {verdict}" for name, verdict in sorted(plot.missing.items()))
        wrapped = textwrap.wrap(f"Not drawn: {', '.join(verdicts)}", width=int(14 * width))
        text(0.05, "\n".join(wrapped), fontsize=8, color=FAINT)
    return figure


def _panel(axes: Any, title: str, lines: Lines, plot: Plot, look: Mapping[str, Look]) -> None:
    from matplotlib.ticker import NullLocator

    sweep = plot.sweep
    for name, line in lines.items():
        low, middle, high = zip(*((e.low, e.value, e.high) for e in line.values()), strict=True)
        axes.fill_between([*line], low, high, color=look[name]["color"], alpha=0.22, linewidth=0)
        axes.plot([*line], middle, **look[name], zorder=2.5 if name in plot.peers else 3)
    axes.set_title(title, loc="left", fontsize=10, color=FAINT)
    axes.axhline(1, color="#8f8f8f", linewidth=1.6, linestyle=(0, (6, 3)), zorder=1.5)
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    if sweep.log2:
        axes.set_xscale("log", base=2)
    axes.xaxis.set_minor_locator(NullLocator())
    ticks = sorted({x for line in lines.values() for x in line})
    axes.set_xticks(ticks, [f"{x:,}" for x in ticks])
    axes.grid(color=GRID, linewidth=0.8)


def _legend(axes: Any, plot: Plot, look: Mapping[str, Look]) -> None:
    """Draw a legend right of the axes, in the order of the lines' right ends, fastest first."""
    from matplotlib.lines import Line2D

    first = next(iter(plot.panels.values()))

    def last(name: str) -> tuple[float, str]:
        return -first[name][max(first[name])].value if name in first else math.inf, name

    names = sorted({name for lines in plot.panels.values() for name in lines}, key=last)
    axes.legend(
        handles=[Line2D([], [], **look[name]) for name in names], loc="upper left",
        bbox_to_anchor=(1.02, 1.02), frameon=False, fontsize=9, labelspacing=0.6,
        handlelength=3.0, borderaxespad=0,
    )  # fmt: skip
