"""Colours, markers and fonts of the plots.

Each contributor keeps one colour on every plot; each further file of a contributor has a marker of
its own. Peers are dashed, limits are grey. The background is white, so that a dark page shows the
plots too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from common.board.plots.sweeps import HostPlot, Plot

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
    "figure.dpi": 72,  # an SVG's unit, so that texts are measured as they are drawn
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


def looks(drawn: Iterable[Plot | HostPlot]) -> dict[str, Look]:
    """Return the look of each solution on the plots.

    Each folder gets a colour and a marker, in alphabetical order. Each further file of one op in
    the same folder gets a lighter shade and the next marker.
    """
    drawn = list(drawn)
    peers = {name for plot in drawn for name in plot.peers}
    ops = {name: plot.op for plot in drawn for name in solutions_of(plot)}
    found: dict[str, Look] = {}
    for colours, are_peers in ((COLOURS, False), (PEER_COLOURS, True)):
        ours = sorted(name for name in ops if (name in peers) is are_peers)
        handles = list(dict.fromkeys(map(_handle, ours)))
        for name in ours:
            place = handles.index(_handle(name))
            turn = _variants(_handle(name), ops).index(_variant(name, ops[name]))
            colour = _lighter(colours[place % len(colours)], turn)
            found[name] = Look(colour, MARKERS[(place + turn) % len(MARKERS)], are_peers)
    return found


def solutions_of(plot: Plot | HostPlot) -> set[str]:
    """Return the names of the solutions that the plot shows."""
    if isinstance(plot, HostPlot):
        return {name for strip in plot.strips for name in strip.times}
    return {name for panel in plot.panels for name in panel.lines}


def labelled(name: str, look: Mapping[str, Look]) -> str:
    """Return the solution's name as a legend shows it: a peer's in parentheses."""
    return f"({name})" if look[name].peer else name


def _handle(name: str) -> str:
    return name.partition("/")[0]


def _variant(name: str, op: str) -> str:
    """Return `_v1` for `alice/rope_v1`, and nothing for `alice/rope`."""
    return name.partition("/")[2].removeprefix(op)


def _variants(handle: str, ops: Mapping[str, str]) -> Sequence[str]:
    return sorted({_variant(name, op) for name, op in ops.items() if _handle(name) == handle})


def _lighter(colour: str, steps: int) -> str:
    """Move the colour three tenths of the way to white, once for each step."""
    parts = (int(colour[start : start + 2], 16) for start in (1, 3, 5))
    return "#" + "".join(f"{round(255 - (255 - part) * 0.7**steps):02x}" for part in parts)
