"""The parts that all figures share: a row of axes, a title, notes below and a legend beside."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from typing import Any

from common.board.plots.style import FAINT

GAP = 0.7
"""Inches between one row of axes and the next."""


def axes(
    count: int, width: float, height: float, shared: bool = False, columns: int | None = None
) -> tuple[Any, list[Any]]:
    """Return a white figure and its `count` axes, each `width` by `height` inches.

    With `shared`, the axes have one scale in common; with `columns`, so many stand in a row.
    """
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    columns = min(count, columns or count)
    rows = -(-count // columns)
    across, total = columns * width + 1, rows * height + (rows - 1) * GAP + 1.6
    figure = Figure(figsize=(across, total), facecolor="white")
    FigureCanvasSVG(figure)  # the figure's texts are measured by its canvas
    grid = figure.subplots(rows, columns, squeeze=False, sharex=shared, sharey=shared)
    figure.subplots_adjust(
        left=0.7 / across, right=0.99, wspace=0.08 if shared else 0.22,
        bottom=0.7 / total, top=1 - 0.9 / total, hspace=GAP / height,
    )  # fmt: skip
    for empty in grid.flat[count:]:
        empty.remove()
    return figure, [*grid.flat[:count]]


def head(figure: Any, title: str, subtitle: str) -> None:
    """Write the title and the subtitle at the top left."""
    left, height = figure.subplotpars.left, figure.get_figheight()
    figure.text(left, 1 - 0.12 / height, title, va="top", fontsize=13, fontweight="bold")
    figure.text(left, 1 - 0.39 / height, subtitle, va="top", fontsize=9, color=FAINT)


def below(figure: Any, x_label: str, missing: Mapping[str, str]) -> None:
    """Write the label of the x axis, and the solutions without a line with their verdicts."""
    left, height = figure.subplotpars.left, figure.get_figheight()
    figure.text(left, 0.3 / height, x_label, va="top", fontsize=9.5)
    lines = [f"{name}: {verdict}" for name, verdict in sorted(missing.items())]
    if lines:
        text = "Not drawn: " + ", ".join(lines)
        wrapped = "\n".join(textwrap.wrap(text, width=int(14 * figure.get_figwidth())))
        figure.text(left, 0.05 / height, wrapped, va="top", fontsize=8, color=FAINT)


def beside(axes: Any, handles: list[Any]) -> None:
    """Put a legend of these handles to the right of the axes."""
    axes.legend(
        handles=handles, loc="upper left", bbox_to_anchor=(1.02, 1.02), frameon=False,
        fontsize=9, labelspacing=0.6, handlelength=3.0, borderaxespad=0,
    )  # fmt: skip
