"""Plots as SVG, through matplotlib: the same records give the same file, byte for byte.

A contributor's colour is his on every plot, a further file of his has a marker of its own; peers
are dashed, limits grey. The background is white, so that a dark page shows them too.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.board.plots.sweeps import HOST_CALLS, HostPlot, Line, Panel, Plot, Strip
from common.board.ranking import LIMITS

COLOURS = (
    "#0072b2", "#d55e00", "#009e73", "#cc4f9c", "#e0a100", "#5b3fa0", "#00a6c4", "#a02c2c",
    "#6b8e23", "#3f4f8f",
)  # fmt: skip
PEER_COLOURS = (
    "#4d4d4d", "#8c564b", "#7f8c3a", "#3a7f8c", "#9a6fb0", "#b0706f", "#5f7fb8", "#a08a4a",
    "#4f8f6f", "#8a8a8a",
)  # fmt: skip
MARKERS = "osD^vPX*"
HOST_MARKERS = {"no_grad": "D", "forward": "o", "backward": "s"}
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


@dataclass(frozen=True)
class Look:
    """How one solution is drawn on every plot."""

    colour: str
    marker: str
    peer: bool

    @property
    def line(self) -> dict[str, Any]:
        dashes = (0, (4, 1.6)) if self.peer else "solid"
        width = 1.3 if self.peer else 1.7
        return {"color": self.colour, "linestyle": dashes, "linewidth": width} | self.point

    @property
    def point(self) -> dict[str, Any]:
        face = "white" if self.peer else self.colour
        return {
            "marker": self.marker, "markersize": 5, "markerfacecolor": face, "markeredgewidth": 1.2,
        }  # fmt: skip


def looks(drawn: Iterable[Plot | HostPlot]) -> dict[str, Look]:
    """A colour and a marker for each folder, in the order of the names; a lighter one and another
    marker for each further file that it has of one op."""
    drawn = list(drawn)
    peers = {name for plot in drawn for name in plot.peers}
    names = {name: plot.op for plot in drawn for name in _names(plot)}
    variants: dict[str, set[str]] = {}
    for name, op in names.items():
        handle, _, file = name.partition("/")
        variants.setdefault(handle, set()).add(file.removeprefix(op))
    found: dict[str, Look] = {}
    for colours, are_peers in ((COLOURS, False), (PEER_COLOURS, True)):
        ours = sorted(name for name in names if (name in peers) is are_peers)
        handles = list(dict.fromkeys(name.partition("/")[0] for name in ours))
        for name in ours:
            handle, _, file = name.partition("/")
            place = handles.index(handle)
            turn = sorted(variants[handle]).index(file.removeprefix(names[name]))
            colour = _lighter(colours[place % len(colours)], turn)
            found[name] = Look(colour, MARKERS[(place + turn) % len(MARKERS)], are_peers)
    return found


def _lighter(colour: str, steps: int) -> str:
    """Each step takes it three tenths of the way to white."""
    parts = (int(colour[start : start + 2], 16) for start in (1, 3, 5))
    return "#" + "".join(f"{round(255 - (255 - part) * 0.7**steps):02x}" for part in parts)


def _names(plot: Plot | HostPlot) -> set[str]:
    if isinstance(plot, HostPlot):
        return {name for strip in plot.strips for name in strip.times}
    return {name for panel in plot.panels for name in panel.lines}


def draw(drawn: Sequence[Plot | HostPlot], device: str, folder: Path) -> list[Path]:
    """Write each as `folder/<name>.svg`; `device` says where it was measured."""
    import matplotlib

    matplotlib.use("svg")
    look = looks(drawn)
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    with matplotlib.rc_context(STYLE):
        for plot in drawn:
            paths.append(folder / f"{plot.name}.svg")
            _write(figure(plot, look, device), paths[-1])
    return paths


def figure(plot: Plot | HostPlot, look: Mapping[str, Look], device: str) -> Any:
    """A matplotlib figure; call it in `rc_context(STYLE)`."""
    if isinstance(plot, HostPlot):
        return _host_figure(plot, look, device)
    return _sweep_figure(plot, look, device)


def _write(figure: Any, path: Path) -> None:
    from matplotlib import pyplot

    figure.savefig(path, format="svg", metadata={"Date": None}, bbox_inches="tight")
    pyplot.close(figure)


# --- sweeps ---------------------------------------------------------------------------------------


def _sweep_figure(plot: Plot, look: Mapping[str, Look], device: str) -> Any:
    count = len(plot.panels)
    figure, row = _axes(count, width=6.6 if count == 1 else 4.7, height=3.9)
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
    """x, median, low and high, from left to right."""
    points = sorted(line.items())
    values = [(float(x), each.value, each.low, each.high) for x, each in points]
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
    """2 and 5 of each decade alone are labelled."""
    return f"{value:g}" if f"{value:e}"[0] in "25" else ""


def _legend(axes: Any, plot: Plot, look: Mapping[str, Look]) -> None:
    """Beside the axes, the fastest at the right end of its line first."""
    from matplotlib.lines import Line2D

    names = {name for panel in plot.panels for name in panel.lines}
    first = plot.panels[0]
    best = sorted(names, key=lambda name: (_last(first.lines.get(name), plot.rates), name))
    handles = [Line2D([], [], **look[name].line, label=_named(name, look)) for name in best]
    handles += [
        Line2D([], [], **LIMIT_LINE, linestyle=LIMIT_DASHES[name], label=LIMITS[name])
        for name in first.limits
    ]
    _beside(axes, handles)


def _last(line: Line | None, rates: bool) -> float:
    if not line:
        return float("inf")
    value = line[max(line)].value
    return -value if rates else value


# --- the host -------------------------------------------------------------------------------------


def _host_figure(plot: HostPlot, look: Mapping[str, Look], device: str) -> Any:
    names = _by_cost(plot)
    figure, row = _axes(len(plot.strips), width=2.9, height=0.6 + 0.29 * len(names), shared=True)
    for axes, strip in zip(row, plot.strips, strict=True):
        _strip(axes, strip, names, look)
    row[0].set_yticks(range(len(names)), [_named(name, look) for name in names])
    row[0].set_ylim(len(names) - 0.4, -0.6)
    _head(figure, plot.title, f"{device} · host time, median with its 95 % interval")
    _below(figure, "microseconds until the call returns", plot.missing)
    _host_legend(row[-1])
    return figure


def _by_cost(plot: HostPlot) -> list[str]:
    """Who costs least in forward first, by the mean of the logarithms over all shapes."""
    from math import log

    def cost(name: str) -> float:
        times = [strip.times[name] for strip in plot.strips if name in strip.times]
        known = [next(iter(each.values())).value for each in times]
        known = [each["forward"].value for each in times if "forward" in each] or known
        return sum(map(log, known)) / len(known)

    return sorted(_names(plot), key=lambda name: (cost(name), name))


def _strip(axes: Any, strip: Strip, names: Sequence[str], look: Mapping[str, Look]) -> None:
    from matplotlib.ticker import LogLocator, NullFormatter

    for place, name in enumerate(names):
        times = strip.times.get(name, {})
        if times:
            values = [each.value for each in times.values()]
            ends = [min(values), max(values)]
            axes.plot(ends, [place] * 2, **look[name].line | {"marker": "", "alpha": 0.45})
        for call, each in times.items():
            error = [[each.value - each.low], [each.high - each.value]]
            marks = _host_marks(call, look[name].colour)
            axes.errorbar(each.value, place, xerr=error, ecolor=look[name].colour, **marks)
    axes.set_title(strip.title, loc="left", fontsize=9, color=FAINT)
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.tick_params(axis="y", labelcolor=INK, labelsize=9.5, length=0)
    axes.grid(color=GRID, linewidth=0.8)


def _host_marks(call: str, colour: str) -> dict[str, Any]:
    face = {"no_grad": "white", "forward": colour, "backward": colour}[call]
    return {
        "color": colour, "linestyle": "none", "marker": HOST_MARKERS[call], "markersize": 5.5,
        "markerfacecolor": face, "markeredgewidth": 1.2, "elinewidth": 1.2, "capsize": 2,
    }  # fmt: skip


def _host_legend(axes: Any) -> None:
    from matplotlib.lines import Line2D

    handles = []
    for call, words in HOST_CALLS.items():
        marks = _host_marks(call, FAINT)
        marks = {key: marks[key] for key in marks if key not in ("elinewidth", "capsize")}
        handles.append(Line2D([], [], label=words, **marks))
    _beside(axes, handles)


# --- what all figures share -----------------------------------------------------------------------


def _axes(count: int, width: float, height: float, shared: bool = False) -> tuple[Any, Any]:
    """A white figure with a row of axes, each so many inches wide and high."""
    from matplotlib import pyplot

    figure, grid = pyplot.subplots(
        1, count, figsize=(count * width + 1, height + 1.6), squeeze=False,
        sharex=shared, sharey=shared, facecolor="white",
    )  # fmt: skip
    total = height + 1.6
    figure.subplots_adjust(
        left=0.7 / (count * width + 1), right=0.99, wspace=0.08 if shared else 0.22,
        bottom=0.7 / total, top=1 - 0.9 / total,
    )  # fmt: skip
    return figure, grid[0]


def _head(figure: Any, title: str, subtitle: str) -> None:
    left, height = figure.subplotpars.left, figure.get_figheight()
    figure.text(left, 1 - 0.12 / height, title, va="top", fontsize=13, fontweight="bold")
    figure.text(left, 1 - 0.39 / height, subtitle, va="top", fontsize=9, color=FAINT)


def _below(figure: Any, x_label: str, missing: Mapping[str, str]) -> None:
    left, height = figure.subplotpars.left, figure.get_figheight()
    figure.text(left, 0.3 / height, x_label, va="top", fontsize=9.5)
    lines = [f"{name}: {verdict}" for name, verdict in sorted(missing.items())]
    if lines:
        text = "Not drawn: " + ", ".join(lines)
        wrapped = "\n".join(textwrap.wrap(text, width=int(14 * figure.get_figwidth())))
        figure.text(left, 0.05 / height, wrapped, va="top", fontsize=8, color=FAINT)


def _beside(axes: Any, handles: list[Any]) -> None:
    axes.legend(
        handles=handles, loc="upper left", bbox_to_anchor=(1.02, 1.02), frameon=False,
        fontsize=9, labelspacing=0.6, handlelength=3.0, borderaxespad=0,
    )  # fmt: skip


def _named(name: str, look: Mapping[str, Look]) -> str:
    return f"({name})" if look[name].peer else name
