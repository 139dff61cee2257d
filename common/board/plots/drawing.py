"""Plots as SVG files, through matplotlib: the same records give the same bytes.

A file states the fingerprint of all that it was drawn from, and is drawn again when that changes:
a figure takes matplotlib most of a second.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from common.board.plots.host_figure import host_figure
from common.board.plots.style import STYLE, Look, looks
from common.board.plots.sweeps import HostPlot, Plot
from common.board.plots.sweeps_figure import sweep_figure
from common.digest import digest

MARGIN = 0.1
"""Inches around a figure."""


@dataclass(frozen=True)
class Drawing:
    """A plot that is to be drawn."""

    plot: Plot | HostPlot
    look: Mapping[str, Look]
    device: str
    """The device's name, for the subtitle."""
    path: Path
    mark: str
    """The fingerprint of all of the above."""

    def write(self) -> None:
        """Draw the file, in a folder that is made where it is missing."""
        import matplotlib

        self.path.parent.mkdir(parents=True, exist_ok=True)
        with matplotlib.rc_context(STYLE):
            _write(figure(self.plot, self.look, self.device), self.path, self.mark)


def due(drawn: Sequence[Plot | HostPlot], device: str, folder: Path) -> list[Drawing]:
    """Return the plots of a device whose file, `folder/<name>.svg`, is not as they are now."""
    look = looks(drawn)
    every = [
        Drawing(plot, look, device, folder / f"{plot.name}.svg", _fingerprint(plot, look, device))
        for plot in drawn
    ]
    return [each for each in every if not _states(each.path, each.mark)]


def _fingerprint(plot: Plot | HostPlot, look: Mapping[str, Look], device: str) -> str:
    """Return the digest of the plot's data and looks, of this folder's code and of matplotlib."""
    code = digest(Path(__file__).parent.glob("*.py"))
    # a set has another order in each process
    data = [sorted(v) if isinstance(v, frozenset) else v for v in vars(plot).values()]
    parts = (
        data,
        sorted((name, str(each)) for name, each in look.items()),
        device,
        code,
        metadata.version("matplotlib"),
    )
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


def _states(path: Path, mark: str) -> bool:
    return path.exists() and mark in path.read_text()


def figure(plot: Plot | HostPlot, look: Mapping[str, Look], device: str) -> Any:
    """Return a matplotlib figure of the plot; call it in `rc_context(STYLE)`."""
    if isinstance(plot, HostPlot):
        return host_figure(plot, look, device)
    return sweep_figure(plot, look, device)


def _write(figure: Any, path: Path, mark: str) -> None:
    stated = {"Date": None, "Identifier": mark}
    # bbox_inches="tight" would draw the figure twice
    whole = figure.get_tightbbox().padded(MARGIN)
    figure.savefig(path, format="svg", metadata=stated, bbox_inches=whole)
