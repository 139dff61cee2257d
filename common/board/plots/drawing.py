"""Plots as SVG files, through matplotlib: the same records give the same bytes.

A file states the fingerprint of all that it was drawn from, and is drawn again when that changes:
a figure takes matplotlib most of a second.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from common.board.plots.host_figure import host_figure
from common.board.plots.style import STYLE, Look, looks
from common.board.plots.sweeps import HostPlot, Plot
from common.board.plots.sweeps_figure import sweep_figure
from common.digest import digest


def draw(drawn: Sequence[Plot | HostPlot], device: str, folder: Path) -> list[Path]:
    """Write each plot as `folder/<name>.svg`, and return the files.

    Args:
        drawn: the plots of one device.
        device: the device's name, for the subtitles.
        folder: made where it is missing.
    """
    look = looks(drawn)
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{plot.name}.svg" for plot in drawn]
    marks = [_fingerprint(plot, look, device) for plot in drawn]
    due = [each for each in zip(drawn, paths, marks, strict=True) if not _states(*each[1:])]
    if due:
        import matplotlib

        matplotlib.use("svg")
        with matplotlib.rc_context(STYLE):
            for plot, path, mark in due:
                _write(figure(plot, look, device), path, mark)
    return paths


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
    from matplotlib import pyplot

    stated = {"Date": None, "Identifier": mark}
    figure.savefig(path, format="svg", metadata=stated, bbox_inches="tight")
    pyplot.close(figure)
