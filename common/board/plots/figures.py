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
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from math import log
from pathlib import Path
from typing import Any

from common.board.plots.sweeps import HOST_CALLS, HostPlot, Line, Panel, Plot, Strip
from common.board.ranking import LIMITS
from common.digest import digest

MARGIN = 0.1
"""Inches around a figure."""
COLOURS = (
    "#0072b2", "#d55e00", "#009e73", "#cc4f9c", "#e0a100", "#5b3fa0", "#00a6c4", "#a02c2c",
    "#6b8e23", "#3f4f8f",
)  # fmt: skip
PEER_COLOURS = (
    "#4d4d4d", "#8c564b", "#7f8c3a", "#3a7f8c", "#9a6fb0", "#b0706f", "#5f7fb8", "#a08a4a",
    "#4f8f6f", "#8a8a8a",
)  # fmt: skip
MARKERS = "osD^vPX*"
LIMIT_LINE: Mapping[str, Any] = {"color": "#8f8f8f", "linewidth": 1.6}
LIMIT_DASHES: Mapping[str, Any] = {"copy": (0, (6, 3)), "dense": (0, (2, 2))}
INK, FAINT, GRID = "#222222", "#6a6a6a", "#e3e3e3"
STYLE: Any = {
    "axes.axisbelow": True,
    "axes.edgecolor": "#9a9a9a",
    "axes.labelcolor": INK,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlecolor": INK,
    "figure.dpi": 72,  # an SVG's unit, so that the measured size of a text is its drawn size
    "font.family": "DejaVu Sans",
    "font.size": 9.5,
    "svg.fonttype": "path",
    "svg.hashsalt": "study",
    "text.color": INK,
    "xtick.color": FAINT,
    "xtick.labelsize": 8.5,
    "ytick.color": FAINT,
    "ytick.labelsize": 8.5,
}


# --- files ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Look:
    """The colour and marker of one solution on every plot."""

    colour: str
    marker: str
    peer: bool

    @property
    def line(self) -> dict[str, Any]:
        """Return matplotlib's options for the solution's line, with its markers."""
        dashes = (0, (4, 1.6)) if self.peer else "solid"
        width = 1.3 if self.peer else 1.7
        return {"color": self.colour, "linestyle": dashes, "linewidth": width} | self.point

    @property
    def point(self) -> dict[str, Any]:
        """Return matplotlib's options for one marker; a peer's marker is hollow."""
        face = "white" if self.peer else self.colour
        return {
            "marker": self.marker, "markersize": 5, "markerfacecolor": face, "markeredgewidth": 1.2,
        }  # fmt: skip


@dataclass(frozen=True)
class Drawing:
    """A plot to draw."""

    plot: Plot | HostPlot
    look: Mapping[str, Look]
    device: str
    """The device's name, for the subtitle."""
    path: Path
    mark: str
    """The fingerprint of the fields above and of the code."""

    def write(self) -> None:
        """Draw the file; create its folder if it is missing."""
        import matplotlib

        self.path.parent.mkdir(parents=True, exist_ok=True)
        svg_metadata = {"Date": None, "Identifier": self.mark}
        with matplotlib.rc_context(STYLE):
            if isinstance(self.plot, HostPlot):
                figure = _host_figure(self.plot, self.look, self.device)
            else:
                figure = _sweep_figure(self.plot, self.look, self.device)
            # bbox_inches="tight" would draw the figure twice
            bounds = figure.get_tightbbox().padded(MARGIN)
            figure.savefig(self.path, format="svg", metadata=svg_metadata, bbox_inches=bounds)


def due(drawn: Sequence[Plot | HostPlot], device: str, folder: Path) -> list[Drawing]:
    """Return the plots of a device whose file, `folder/<name>.svg`, is missing or out of date."""
    look = looks(drawn)
    drawings = [
        Drawing(plot, look, device, folder / f"{plot.name}.svg", _fingerprint(plot, look, device))
        for plot in drawn
    ]
    return [
        drawing
        for drawing in drawings
        if not (drawing.path.exists() and drawing.mark in drawing.path.read_text())
    ]


def _fingerprint(plot: Plot | HostPlot, look: Mapping[str, Look], device: str) -> str:
    """Return the digest of the plot's data and looks, the code and matplotlib's version."""
    code = digest(Path(__file__).parent.glob("*.py"))
    # the order of a set differs between processes
    data = [sorted(v) if isinstance(v, frozenset) else v for v in vars(plot).values()]
    parts = (
        data,
        sorted((name, str(of_solution)) for name, of_solution in look.items()),
        device,
        code,
        metadata.version("matplotlib"),
    )
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


# --- colours and markers --------------------------------------------------------------------------


def looks(drawn: Iterable[Plot | HostPlot]) -> dict[str, Look]:
    """Return the look of each solution on the plots.

    Folders get a colour and a marker in alphabetical order. Further files of an op in the same
    folder get a lighter shade and the next marker.
    """
    drawn = list(drawn)
    peers = {name for plot in drawn for name in plot.peers}
    ops = {name: plot.op for plot in drawn for name in solutions_of(plot)}
    looks: dict[str, Look] = {}
    for colours, are_peers in ((COLOURS, False), (PEER_COLOURS, True)):
        names = sorted(name for name in ops if (name in peers) is are_peers)
        handles = list(dict.fromkeys(map(_handle, names)))
        for name in names:
            folder = handles.index(_handle(name))
            variants = {_variant(other, op) for other, op in ops.items()
                        if _handle(other) == _handle(name)}  # fmt: skip
            variant = sorted(variants).index(_variant(name, ops[name]))
            colour = _lighter(colours[folder % len(colours)], variant)
            looks[name] = Look(colour, MARKERS[(folder + variant) % len(MARKERS)], are_peers)
    return looks


def solutions_of(plot: Plot | HostPlot) -> set[str]:
    """Return the names of the plot's solutions."""
    if isinstance(plot, HostPlot):
        return {name for strip in plot.strips for name in strip.times}
    return {name for panel in plot.panels for name in panel.lines}


def labelled(name: str, look: Mapping[str, Look]) -> str:
    """Return the solution's name in a legend, with parentheses around a peer's name."""
    return f"({name})" if look[name].peer else name


def _handle(name: str) -> str:
    return name.partition("/")[0]


def _variant(name: str, op: str) -> str:
    """Return `_v1` for `alice/rope_v1`, and an empty string for `alice/rope`."""
    return name.partition("/")[2].removeprefix(op)


def _lighter(colour: str, steps: int) -> str:
    """Return the colour mixed with 30 % of white in each step."""
    parts = (int(colour[start : start + 2], 16) for start in (1, 3, 5))
    return "#" + "".join(f"{round(255 - (255 - part) * 0.7**steps):02x}" for part in parts)


# --- parts of all figures -------------------------------------------------------------------------

GAP = 0.7
"""Inches between one row of axes and the next."""


def _grid(
    count: int, width: float, height: float, shared: bool = False, columns: int | None = None
) -> tuple[Any, list[Any]]:
    """Return a white figure and its `count` axes, each `width` by `height` inches.

    With `shared`, all axes share a scale. A row has `columns` axes; all axes by default.
    """
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    columns = min(count, columns or count)
    rows = -(-count // columns)
    total_width, total_height = columns * width + 1, rows * height + (rows - 1) * GAP + 1.6
    figure = Figure(figsize=(total_width, total_height), facecolor="white")
    FigureCanvasSVG(figure)  # the canvas measures the figure's texts
    grid = figure.subplots(rows, columns, squeeze=False, sharex=shared, sharey=shared)
    figure.subplots_adjust(
        left=0.7 / total_width, right=0.99, wspace=0.08 if shared else 0.22,
        bottom=0.7 / total_height, top=1 - 0.9 / total_height, hspace=GAP / height,
    )  # fmt: skip
    for empty in grid.flat[count:]:
        empty.remove()
    return figure, [*grid.flat[:count]]


def _head(figure: Any, title: str, subtitle: str) -> None:
    """Draw the title and the subtitle at the top left."""
    left, height = figure.subplotpars.left, figure.get_figheight()
    figure.text(left, 1 - 0.12 / height, title, va="top", fontsize=13, fontweight="bold")
    figure.text(left, 1 - 0.39 / height, subtitle, va="top", fontsize=9, color=FAINT)


def _below(figure: Any, x_label: str, missing: Mapping[str, str]) -> None:
    """Draw the label of the x axis, and the verdicts of the solutions without a line."""
    left, height = figure.subplotpars.left, figure.get_figheight()
    figure.text(left, 0.3 / height, x_label, va="top", fontsize=9.5)
    lines = [f"{name}: {verdict}" for name, verdict in sorted(missing.items())]
    if lines:
        text = "Not drawn: " + ", ".join(lines)
        wrapped = "\n".join(textwrap.wrap(text, width=int(14 * figure.get_figwidth())))
        figure.text(left, 0.05 / height, wrapped, va="top", fontsize=8, color=FAINT)


def _beside(axes: Any, handles: list[Any]) -> None:
    """Draw a legend of these handles to the right of the axes."""
    axes.legend(
        handles=handles, loc="upper left", bbox_to_anchor=(1.02, 1.02), frameon=False,
        fontsize=9, labelspacing=0.6, handlelength=3.0, borderaxespad=0,
    )  # fmt: skip


# --- a sweep: a line for each solution ------------------------------------------------------------


def _sweep_figure(plot: Plot, look: Mapping[str, Look], device: str) -> Any:
    """Return a matplotlib figure with the plot's panels side by side."""
    count = len(plot.panels)
    figure, row = _grid(count, width=6.6 if count == 1 else 4.7, height=3.9)
    for axes, panel in zip(row, plot.panels, strict=True):
        _panel(axes, panel, plot, look)
    _head(figure, plot.title, f"{device} · GPU time, median with its 95 % interval")
    _below(figure, plot.x_label, plot.missing)
    _legend(row[-1], plot, look)
    return figure


def _panel(axes: Any, panel: Panel, plot: Plot, look: Mapping[str, Look]) -> None:
    for name, line in panel.limits.items():
        x, middle, *_ = _columns(line)
        axes.plot(x, middle, **LIMIT_LINE, linestyle=LIMIT_DASHES[name], zorder=1.5)
    for name, line in panel.lines.items():
        x, middle, low, high = _columns(line)
        axes.fill_between(x, low, high, color=look[name].colour, alpha=0.22, linewidth=0)
        axes.plot(x, middle, **look[name].line, zorder=2.5 if look[name].peer else 3)
    axes.set_title(panel.title, loc="left", fontsize=10, color=FAINT)
    axes.set_ylabel(panel.y_label)
    _scale(axes, panel, plot)


def _columns(line: Line) -> tuple[list[float], ...]:
    """Return lists of x, median, low and high from left to right."""
    points = sorted(line.items())
    values = [(float(x), estimate.value, estimate.low, estimate.high) for x, estimate in points]
    return tuple(list(column) for column in zip(*values, strict=True))


def _scale(axes: Any, panel: Panel, plot: Plot) -> None:
    from matplotlib.ticker import NullLocator

    if plot.log2:
        axes.set_xscale("log", base=2)
    axes.xaxis.set_minor_locator(NullLocator())
    ticks = sorted({x for line in panel.lines.values() for x in line})
    axes.set_xticks(ticks, [f"{x:,}" for x in ticks])
    if plot.rates:
        axes.set_ylim(bottom=0)
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    else:
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.yaxis.set_minor_formatter(_between_decades)
    axes.grid(color=GRID, linewidth=0.8)
    axes.grid(axis="y", which="minor", color=GRID, linewidth=0.4)


def _between_decades(value: float, _: int | None) -> str:
    """Label only 2 and 5 of each decade."""
    return f"{value:g}" if f"{value:e}"[0] in "25" else ""


def _legend(axes: Any, plot: Plot, look: Mapping[str, Look]) -> None:
    """Draw a legend right of the axes, in the order of the lines' right ends, fastest first."""
    from matplotlib.lines import Line2D

    names = {name for panel in plot.panels for name in panel.lines}
    first_panel = plot.panels[0]
    ordered = sorted(names, key=lambda name: (_last(first_panel.lines.get(name), plot.rates), name))
    handles = [Line2D([], [], **look[name].line, label=labelled(name, look)) for name in ordered]
    handles += [
        Line2D([], [], **LIMIT_LINE, linestyle=LIMIT_DASHES[name], label=LIMITS[name])
        for name in first_panel.limits
    ]
    _beside(axes, handles)


def _last(line: Line | None, rates: bool) -> float:
    """Return a sort key: the line's rightmost value, negated for rates; infinite without a line."""
    if not line:
        return float("inf")
    value = line[max(line)].value
    return -value if rates else value


# --- host times: a row for each solution, a strip for each case -----------------------------------

COLUMNS = 3
"""The number of strips in a row."""
CALL_MARKERS = {"no_grad": "D", "forward": "o", "backward": "s"}


def _host_figure(plot: HostPlot, look: Mapping[str, Look], device: str) -> Any:
    """Return a matplotlib figure with the plot's strips."""
    names = _by_cost(plot)
    size = {"width": 2.9, "height": 0.6 + 0.29 * len(names)}
    figure, strips = _grid(len(plot.strips), **size, shared=True, columns=COLUMNS)
    for axes, strip in zip(strips, plot.strips, strict=True):
        _strip(axes, strip, names, look)
    strips[0].set_yticks(range(len(names)), [labelled(name, look) for name in names])
    strips[0].set_ylim(len(names) - 0.4, -0.6)
    _head(figure, plot.title, f"{device} · host time, median with its 95 % interval")
    _below(figure, "microseconds until the call returns", plot.missing)
    _host_legend(strips[:COLUMNS][-1])
    return figure


def _by_cost(plot: HostPlot) -> list[str]:
    """Return the solutions by the geometric mean of their forward times, the fastest first.

    A solution without forward times is ordered by its first kind of call.
    """

    def cost(name: str) -> float:
        times = [strip.times[name] for strip in plot.strips if name in strip.times]
        known = [next(iter(time.values())).value for time in times]
        known = [time["forward"].value for time in times if "forward" in time] or known
        return sum(map(log, known)) / len(known)

    return sorted(solutions_of(plot), key=lambda name: (cost(name), name))


def _strip(axes: Any, strip: Strip, names: Sequence[str], look: Mapping[str, Look]) -> None:
    from matplotlib.ticker import LogLocator, NullFormatter

    for place, name in enumerate(names):
        _row(axes, strip, name, place, look[name])
    axes.set_title(strip.title, loc="left", fontsize=9, color=FAINT)
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.tick_params(axis="x", labelbottom=True)
    axes.tick_params(axis="y", labelcolor=INK, labelsize=9.5, length=0)
    axes.grid(color=GRID, linewidth=0.8)


def _row(axes: Any, strip: Strip, name: str, place: int, look: Look) -> None:
    """Draw one solution's calls, with a line from the fastest call to the slowest."""
    times = strip.times.get(name, {})
    if times:
        values = [time.value for time in times.values()]
        ends = [min(values), max(values)]
        axes.plot(ends, [place] * 2, **look.line | {"marker": "", "alpha": 0.45})
    for call, time in times.items():
        error = [[time.value - time.low], [time.high - time.value]]
        axes.errorbar(
            time.value, place, xerr=error, ecolor=look.colour, **_marks(call, look.colour)
        )


def _marks(call: str, colour: str) -> dict[str, Any]:
    face = {"no_grad": "white", "forward": colour, "backward": colour}[call]
    return {
        "color": colour, "linestyle": "none", "marker": CALL_MARKERS[call], "markersize": 5.5,
        "markerfacecolor": face, "markeredgewidth": 1.2, "elinewidth": 1.2, "capsize": 2,
    }  # fmt: skip


def _host_legend(axes: Any) -> None:
    from matplotlib.lines import Line2D

    handles = []
    for call, words in HOST_CALLS.items():
        marks = _marks(call, FAINT)
        marks = {key: marks[key] for key in marks if key not in ("elinewidth", "capsize")}
        handles.append(Line2D([], [], label=words, **marks))
    _beside(axes, handles)
