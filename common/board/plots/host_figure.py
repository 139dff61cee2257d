"""The figure of host times: a row for each solution, a strip for each case."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import log
from typing import Any

from common.board.plots import frame
from common.board.plots.style import FAINT, GRID, INK, Look, labelled, solutions_of
from common.board.plots.sweeps import HOST_CALLS, HostPlot, Strip

COLUMNS = 3
"""The strips side by side; further ones stand below."""
MARKERS = {"no_grad": "D", "forward": "o", "backward": "s"}


def host_figure(plot: HostPlot, look: Mapping[str, Look], device: str) -> Any:
    """Return a matplotlib figure with the plot's strips."""
    names = _by_cost(plot)
    size = {"width": 2.9, "height": 0.6 + 0.29 * len(names)}
    figure, strips = frame.axes(len(plot.strips), **size, shared=True, columns=COLUMNS)
    for axes, strip in zip(strips, plot.strips, strict=True):
        _strip(axes, strip, names, look)
    strips[0].set_yticks(range(len(names)), [labelled(name, look) for name in names])
    strips[0].set_ylim(len(names) - 0.4, -0.6)
    frame.head(figure, plot.title, f"{device} · host time, median with its 95 % interval")
    frame.below(figure, "microseconds until the call returns", plot.missing)
    _legend(strips[:COLUMNS][-1])
    return figure


def _by_cost(plot: HostPlot) -> list[str]:
    """Return the solutions by the geometric mean of their forward times, cheapest first.

    A solution without forward times is placed by the first kind of call that it has.
    """

    def cost(name: str) -> float:
        times = [strip.times[name] for strip in plot.strips if name in strip.times]
        known = [next(iter(each.values())).value for each in times]
        known = [each["forward"].value for each in times if "forward" in each] or known
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
    """Draw one solution's calls, with a line from the cheapest call to the dearest."""
    times = strip.times.get(name, {})
    if times:
        values = [each.value for each in times.values()]
        ends = [min(values), max(values)]
        axes.plot(ends, [place] * 2, **look.line | {"marker": "", "alpha": 0.45})
    for call, each in times.items():
        error = [[each.value - each.low], [each.high - each.value]]
        axes.errorbar(
            each.value, place, xerr=error, ecolor=look.colour, **_marks(call, look.colour)
        )


def _marks(call: str, colour: str) -> dict[str, Any]:
    face = {"no_grad": "white", "forward": colour, "backward": colour}[call]
    return {
        "color": colour, "linestyle": "none", "marker": MARKERS[call], "markersize": 5.5,
        "markerfacecolor": face, "markeredgewidth": 1.2, "elinewidth": 1.2, "capsize": 2,
    }  # fmt: skip


def _legend(axes: Any) -> None:
    from matplotlib.lines import Line2D

    handles = []
    for call, words in HOST_CALLS.items():
        marks = _marks(call, FAINT)
        marks = {key: marks[key] for key in marks if key not in ("elinewidth", "capsize")}
        handles.append(Line2D([], [], label=words, **marks))
    frame.beside(axes, handles)
