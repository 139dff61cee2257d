"""Draw plots as SVG files with matplotlib: the same records give the same bytes.

A file contains the fingerprint of its data and code, and is drawn again only when the fingerprint
changes: drawing a figure takes most of a second.

A contributor has the same colour on every plot; a contributor's further files have other markers.
Peers are dashed, limits are grey. The background is white, so that the plots are legible on a dark
page.
"""

from __future__ import annotations

import hashlib
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from common.board import ranking
from common.board.devices import Device
from common.board.plots import sweeps
from common.board.plots.sweeps import Panel, Plot, Sweep
from common.digest import digest

COLOURS = (
    "#0072b2", "#d55e00", "#009e73", "#cc4f9c", "#e0a100", "#5b3fa0", "#00a6c4", "#a02c2c",
    "#6b8e23", "#3f4f8f",
)  # fmt: skip
PEER_COLOURS = (
    "#4d4d4d", "#8c564b", "#7f8c3a", "#3a7f8c", "#9a6fb0", "#b0706f", "#5f7fb8", "#a08a4a",
    "#4f8f6f", "#8a8a8a",
)  # fmt: skip
MARKERS = "osD^vPX*"
LIMITS: Mapping[str, Any] = {
    name: {"color": "#8f8f8f", "linewidth": 1.6, "linestyle": (0, dashes), "label": label}
    for (name, label), dashes in zip(ranking.LIMITS.items(), ((6, 3), (2, 2)), strict=True)
}
"""Matplotlib's options for the line of each limit."""
INK, FAINT, GRID = "#222222", "#6a6a6a", "#e3e3e3"
STYLE: Any = {
    "axes.axisbelow": True, "axes.edgecolor": "#9a9a9a", "axes.labelcolor": INK,
    "axes.spines.right": False, "axes.spines.top": False, "figure.dpi": 72,
    "font.family": "DejaVu Sans", "font.size": 9.5, "svg.fonttype": "path",
    "svg.hashsalt": "study", "text.color": INK, "xtick.color": FAINT, "xtick.labelsize": 8.5,
    "ytick.color": FAINT, "ytick.labelsize": 8.5,
}  # fmt: skip


@dataclass(frozen=True)
class Look:
    """The colour and marker of one solution on every plot."""

    colour: str
    marker: str
    peer: bool

    @property
    def line(self) -> dict[str, Any]:
        """Return matplotlib's options for the solution's line; a peer's markers are hollow."""
        return {
            "color": self.colour, "linestyle": (0, (4, 1.6)) if self.peer else "solid",
            "linewidth": 1.3 if self.peer else 1.7, "marker": self.marker, "markersize": 5,
            "markerfacecolor": "white" if self.peer else self.colour, "markeredgewidth": 1.2,
        }  # fmt: skip


def looks(drawn: Sequence[Plot]) -> dict[str, Look]:
    """Return the look of each solution on the plots.

    Folders get a colour and a marker in alphabetical order. Further files of an op in the same
    folder get a lighter shade and the next marker.
    """
    ops = {name: plot.sweep.op for plot in drawn for panel in plot.panels for name in panel.lines}
    peers = {name for plot in drawn for name in plot.peers}
    looks: dict[str, Look] = {}
    for are_peers, colours in ((False, COLOURS), (True, PEER_COLOURS)):
        names = sorted(name for name in ops if (name in peers) is are_peers)
        folders = list(dict.fromkeys(name.partition("/")[0] for name in names))
        for name in names:
            place = folders.index(name.partition("/")[0])
            siblings = [
                o for o in names if ops[o] == ops[name] and o.startswith(folders[place] + "/")
            ]
            file = siblings.index(name)
            colour = _lighter(colours[place % len(colours)], file)
            looks[name] = Look(colour, MARKERS[(place + file) % len(MARKERS)], are_peers)
    return looks


def _lighter(colour: str, steps: int) -> str:
    """Return the colour mixed with 30 % of white in each step."""
    parts = (int(colour[start : start + 2], 16) for start in (1, 3, 5))
    return "#" + "".join(f"{round(255 - (255 - part) * 0.7**steps):02x}" for part in parts)


# --- files ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Drawing:
    """A plot to draw."""

    plot: Plot
    look: Mapping[str, Look]
    device: str
    """The device's name, for the subtitle."""
    path: Path
    mark: str
    """The fingerprint of the plot, the looks, the device and the code."""

    def write(self) -> None:
        """Draw the file; create its folder if it is missing."""
        import matplotlib

        self.path.parent.mkdir(parents=True, exist_ok=True)
        svg_metadata = {"Date": None, "Identifier": self.mark}
        with matplotlib.rc_context(STYLE):
            figure = _figure(self.plot, self.look, self.device)
            # bbox_inches="tight" would draw the figure twice
            bounds = figure.get_tightbbox().padded(0.1)
            figure.savefig(self.path, format="svg", metadata=svg_metadata, bbox_inches=bounds)


def due(device: Device, folder: Path) -> list[Drawing]:
    """Return the plots of a device whose file, `folder/<name>.svg`, is missing or out of date."""
    drawn = sweeps.of_device(device)
    look = looks(drawn)
    code = digest(Path(__file__).parent.glob("*.py")), metadata.version("matplotlib")
    drawings = []
    for plot in drawn:
        data = repr((plot, sorted(look.items(), key=str), device.name, code))
        mark = hashlib.sha256(data.encode()).hexdigest()[:16]
        path = folder / f"{plot.sweep.name}.svg"
        if not (path.exists() and mark in path.read_text()):
            drawings.append(Drawing(plot, look, device.name, path, mark))
    return drawings


# --- a figure -------------------------------------------------------------------------------------


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
    for axes, panel in zip(row, plot.panels, strict=True):
        _panel(axes, panel, plot, look)
    _legend(row[-1], plot, look)

    def text(inches: float, words: str, **options: Any) -> None:
        figure.text(0.7 / width, inches / height, words, va="top", **options)

    text(height - 0.12, plot.sweep.title, fontsize=13, fontweight="bold")
    subtitle = f"{device} · GPU time, median with its 95 % interval"
    text(height - 0.39, subtitle, fontsize=9, color=FAINT)
    text(0.3, plot.sweep.x_label, fontsize=9.5)
    if plot.missing:
        verdicts = (f"{name}: {verdict}" for name, verdict in sorted(plot.missing.items()))
        lines = textwrap.wrap(f"Not drawn: {', '.join(verdicts)}", width=int(14 * width))
        text(0.05, "\n".join(lines), fontsize=8, color=FAINT)
    return figure


def _panel(axes: Any, panel: Panel, plot: Plot, look: Mapping[str, Look]) -> None:
    for name, line in panel.limits.items():
        axes.plot([*line], [each.value for each in line.values()], **LIMITS[name], zorder=1.5)
    for name, line in panel.lines.items():
        low, middle, high = zip(*((e.low, e.value, e.high) for e in line.values()), strict=True)
        axes.fill_between([*line], low, high, color=look[name].colour, alpha=0.22, linewidth=0)
        axes.plot([*line], middle, **look[name].line, zorder=2.5 if look[name].peer else 3)
    axes.set_title(panel.title, loc="left", fontsize=10, color=FAINT)
    axes.set_ylabel(panel.y_label)
    _scale(axes, panel, plot.sweep)


def _scale(axes: Any, panel: Panel, sweep: Sweep) -> None:
    from matplotlib.ticker import NullLocator

    if sweep.log2:
        axes.set_xscale("log", base=2)
    axes.xaxis.set_minor_locator(NullLocator())
    ticks = sorted({x for line in panel.lines.values() for x in line})
    axes.set_xticks(ticks, [f"{x:,}" for x in ticks])
    if sweep.rates:
        axes.set_ylim(bottom=0)
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    else:
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        # of each decade, 2 and 5 have labels too
        axes.yaxis.set_minor_formatter(
            lambda value, _: f"{value:g}" if f"{value:e}"[0] in "25" else ""
        )
    axes.grid(color=GRID, linewidth=0.8)
    axes.grid(axis="y", which="minor", color=GRID, linewidth=0.4)


def _legend(axes: Any, plot: Plot, look: Mapping[str, Look]) -> None:
    """Draw a legend right of the axes, in the order of the lines' right ends, fastest first."""
    from matplotlib.lines import Line2D

    first = plot.panels[0]

    def last(name: str) -> tuple[float, str]:
        line = first.lines.get(name, {})
        value = line[max(line)].value if line else float("inf")
        return -value if plot.sweep.rates and line else value, name

    names = sorted({name for panel in plot.panels for name in panel.lines}, key=last)
    labels = {name: f"({name})" if look[name].peer else name for name in names}
    handles = [Line2D([], [], **look[name].line, label=label) for name, label in labels.items()]
    handles += [Line2D([], [], **LIMITS[name]) for name in first.limits]
    axes.legend(
        handles=handles, loc="upper left", bbox_to_anchor=(1.02, 1.02), frameon=False,
        fontsize=9, labelspacing=0.6, handlelength=3.0, borderaxespad=0,
    )  # fmt: skip
