"""The figure of one sweep: a line for each solution over sequence length or token count."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from common.board.plots import frame
from common.board.plots.style import FAINT, GRID, LIMIT_DASHES, LIMIT_LINE, Look, labelled
from common.board.plots.sweeps import Line, Panel, Plot
from common.board.ranking import LIMITS


def sweep_figure(plot: Plot, look: Mapping[str, Look], device: str) -> Any:
    """Return a matplotlib figure with the plot's panels side by side."""
    count = len(plot.panels)
    figure, row = frame.axes(count, width=6.6 if count == 1 else 4.7, height=3.9)
    for axes, panel in zip(row, plot.panels, strict=True):
        _panel(axes, panel, plot, look)
    frame.head(figure, plot.title, f"{device} · GPU time, median with its 95 % interval")
    frame.below(figure, plot.x_label, plot.missing)
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
    """Return x, median, low and high, each a list from left to right."""
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
    """Label 2 and 5 of each decade alone."""
    return f"{value:g}" if f"{value:e}"[0] in "25" else ""


def _legend(axes: Any, plot: Plot, look: Mapping[str, Look]) -> None:
    """Put a legend beside the axes, in the order of the lines' right ends, fastest first."""
    from matplotlib.lines import Line2D

    names = {name for panel in plot.panels for name in panel.lines}
    first = plot.panels[0]
    best = sorted(names, key=lambda name: (_last(first.lines.get(name), plot.rates), name))
    handles = [Line2D([], [], **look[name].line, label=labelled(name, look)) for name in best]
    handles += [
        Line2D([], [], **LIMIT_LINE, linestyle=LIMIT_DASHES[name], label=LIMITS[name])
        for name in first.limits
    ]
    frame.beside(axes, handles)


def _last(line: Line | None, rates: bool) -> float:
    """Return a sort key: the line's rightmost value, negative for rates, infinite for no line."""
    if not line:
        return float("inf")
    value = line[max(line)].value
    return -value if rates else value
