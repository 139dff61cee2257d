"""The plots of sweeps: their data, and their drawing as SVG files.

The plots show the records of the tier `plot`. A sweep of `sweeps.toml` selects its cases by their
parameters: `rope-bandwidth` has the cases with b 1, h 8 and d 256, and its x is s. A line is a
solution's share of the limit that was timed beside it, with its 95 % interval at each x: so lines
of several runs can stand beside each other, whose limits differ.

The x of a sweep are evenly spaced. A solution has the same colour and marker on every plot, and no
two share a colour. Peers are dashed, with hollow markers.
"""

from __future__ import annotations

import itertools
import math
import textwrap
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from common.board.devices import Device
from common.board.page import rendering
from common.board.ranking import DIRECTION, About, reached
from common.board.table import OUTDATED, STALE
from common.records.lines import Estimate, Record


@dataclass(frozen=True)
class SweepPlot:
    """Cases whose parameters equal `where`, apart from the parameter on the x axis."""

    name: str
    op: str
    title: str
    x_label: str
    x: str
    where: Mapping[str, Any]
    default: int = 1
    """The x of a case without this parameter."""

    def has(self, row: Record) -> bool:
        """Return whether the row's case is on the sweep."""
        own = {name: value for name, value in row.params.items() if name != self.x}
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
    stale: frozenset[str]
    """The solutions whose source has changed since they were measured."""
    missing: Mapping[str, str]
    """The verdicts of the solutions without a line."""

    @property
    def names(self) -> list[str]:
        """The solutions with a line, in the order of the lines' right ends, the fastest first."""
        first = next(iter(self.panels.values()))

        def last(name: str) -> tuple[float, str]:
            return -first[name][max(first[name])].value if name in first else math.inf, name

        return sorted({name for lines in self.panels.values() for name in lines}, key=last)


# --- the data -------------------------------------------------------------------------------------


def of_device(device: Device) -> list[Plot]:
    """Return the plots of a device's rows, timed and failed, of the known solutions."""
    rows = [row for row in device.results.latest("plot") if row.solution in device.about]
    return plots(rows, device.about)


def plots(rows: Sequence[Record], about: Mapping[str, About] = MappingProxyType({})) -> list[Plot]:
    """Return the plots with at least one timed row; only the latest version of the clock counts."""
    plots, text = [], Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")
    for name, fields in tomllib.loads(text).items():
        sweep = SweepPlot(name, **fields)
        own = [row for row in rows if sweep.has(row)]
        clock = max((row.clock for row in own if row.gpu), default=0)
        own = [row for row in own if not row.gpu or row.clock == clock]
        # rows of another sweep may belong to this sweep too
        if any(row.gpu and sweep.x in row.params for row in own):
            lines = {words: _lines(sweep, own, each) for each, words in DIRECTION.items()}
            panels = {title: of for title, of in lines.items() if of}
            drawn = {name for panel in panels.values() for name in panel}
            peers = tuple(sorted({row.solution for row in own if row.peer}))
            failed = [row for row in own if row.solution not in drawn and row.verdict != "PASSED"]
            missing = {row.solution: row.verdict for row in reversed(failed)}
            stale = {row.solution for row in own
                     if row.gpu and about.get(row.solution, About()).is_newer([row])}  # fmt: skip
            plots.append(Plot(sweep, panels, peers, frozenset(stale), missing))
    return plots


def _lines(sweep: SweepPlot, rows: Iterable[Record], direction: str) -> Lines:
    """Return the shares of the limit of each solution with a time, by x."""
    found: dict[str, dict[int, Estimate]] = defaultdict(dict)
    for row in rows:
        if row.direction == direction and row.gpu:
            found[row.solution][int(row.params.get(sweep.x, sweep.default))] = reached(row.gpu)
    return {name: dict(sorted(line.items())) for name, line in found.items()}


# --- the drawing ----------------------------------------------------------------------------------

MARKERS = (
    "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0z", "M-3.5-3.5h7v7h-7z", "M0-5l5 5-5 5-5-5z", "M0-5l5 9h-10z",
    "M0 5l5-9h-10z", "M-1.5-4.5h3v3h3v3h-3v3h-3v-3h-3v-3h3z", "M-5 0l9-5v10z", "M5 0l-9-5v10z",
)  # fmt: skip
"""The outlines of markers around the point 0, 0."""
HUES = 0.618
"""The part of the circle of colours between two solutions: steps of the golden ratio never meet."""
LIGHTNESS = (35, 45, 28)
STEPS = (0.1, 0.2, 0.5, 1, 2, 5, 10, 100)
"""The steps between two lines of the grid."""
Look = tuple[str, str]
"""The colour and the marker of a solution."""


def looks(drawn: Iterable[Plot]) -> dict[str, Look]:
    """Return the look of each solution on the plots, by its place in the alphabet."""
    names = sorted({name for plot in drawn for name in plot.names})
    hues = [f"hsl({360 * (place * HUES % 1):.0f} 70% {LIGHTNESS[place % 3]}%)"
            for place in range(len(names))]  # fmt: skip
    return dict(zip(names, zip(hues, itertools.cycle(MARKERS), strict=False), strict=True))


def files(device: Device) -> dict[str, str]:
    """Return the device's plots as SVG, by the names of their files."""
    drawn = of_device(device)
    look = looks(drawn)
    return {f"{plot.sweep.name}.svg": _svg(plot, look, device.name) for plot in drawn}


def _svg(plot: Plot, look: Mapping[str, Look], device: str) -> str:
    """Return the plot's panels side by side, and the legend."""
    lines = [line for panel in plot.panels.values() for line in panel.values()]
    xs = sorted({x for line in lines for x in line})
    places = {x: place / max(len(xs) - 1, 1) for place, x in enumerate(xs)}
    top = max(1.0, *(each.high for line in lines for each in line.values()))
    step = next(step for step in STEPS if 10 * step >= top)
    verdicts = ", ".join(f"{name}: {verdict}" for name, verdict in sorted(plot.missing.items()))
    notes = textwrap.wrap(f"Not drawn: {verdicts}", 130) if verdicts else []
    notes += [OUTDATED] * bool(plot.stale)
    context = {"device": device, "looks": look, "places": places, "notes": notes, "mark": STALE}
    grid = [step * number for number in range(math.floor(top / step) + 1)]
    return rendering.draw("sweep.svg", plot=plot, grid=grid, top=1.03 * top, **context) + "\n"
