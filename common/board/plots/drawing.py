"""Plots as SVG files, through matplotlib: the same records give the same bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from common.board.plots.host_figure import host_figure
from common.board.plots.style import STYLE, Look, looks
from common.board.plots.sweeps import HostPlot, Plot
from common.board.plots.sweeps_figure import sweep_figure


def draw(drawn: Sequence[Plot | HostPlot], device: str, folder: Path) -> list[Path]:
    """Write each plot as `folder/<name>.svg`, and return the files.

    Args:
        drawn: the plots of one device.
        device: the device's name, for the subtitles.
        folder: made where it is missing.
    """
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
    """Return a matplotlib figure of the plot; call it in `rc_context(STYLE)`."""
    if isinstance(plot, HostPlot):
        return host_figure(plot, look, device)
    return sweep_figure(plot, look, device)


def _write(figure: Any, path: Path) -> None:
    from matplotlib import pyplot

    figure.savefig(path, format="svg", metadata={"Date": None}, bbox_inches="tight")
    pyplot.close(figure)
