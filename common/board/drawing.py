"""A table drawn for a terminal: columns that do not fit are left out, the least needed first."""

from __future__ import annotations

import textwrap
from collections.abc import Container, Sequence

from rich import box
from rich.cells import cell_len
from rich.table import Table as Drawing
from rich.text import Text

from common.board import table
from common.board.table import Table
from common.printable import printable
from common.solutions import is_among

WHERE_THERE_IS_ROOM = (
    "covers", "worst share of limit", "note", "of its cases", "peak memory", "error / eager's",
)  # fmt: skip
"""The columns that a narrow terminal goes without; those that are needed most stand first."""
GAP = 2
"""Blanks between two columns."""
HEADING = 11
"""A heading is broken into lines where it is wider than this and than its column."""
LEAST_NOTE = 16
"""A note that has less room says nothing."""


def fitted(whole: Table, width: int) -> Table:
    """Return the table without the columns for which the width has no room."""
    left_out = [name for name in WHERE_THERE_IS_ROOM if name in whole.header]
    for name in tuple(left_out):
        left_out.remove(name)
        if _width(_without(whole, left_out)) > width:
            left_out.append(name)
    return _without(whole, left_out)


def draw(drawn: Table, only: str = "", whole: bool = False) -> Drawing:
    """Return the drawing; the rows of the handle or solution `only` stand out.

    With `whole`, a note takes the lines that it needs; else its end is cut off.
    """
    last = drawn.header[-1]
    drawing = Drawing(
        title=drawn.title,
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        caption="\n".join(map(printable, drawn.footnotes)) or None,
        caption_justify="left",
        expand=_is_note(last),
        pad_edge=False,
        show_edge=False,
        padding=(0, GAP - 1, 0, 0),  # the box adds a blank
    )
    for name, *cells in zip(drawn.header, *drawn.rows, strict=True):
        drawing.add_column(
            _heading(name, cells),
            justify="left" if name in table.TEXT else "right",
            overflow="ellipsis",
            ratio=1 if name == last and _is_note(name) else None,
        )
    place = drawn.header.index("solution")
    for row in drawn.rows:
        texts = [
            Text(printable(cell), no_wrap=not (whole and _is_note(name)), overflow="ellipsis")
            for name, cell in zip(drawn.header, row, strict=True)
        ]
        drawing.add_row(*texts, style=_style(row[place], only))
    return drawing


def _is_note(name: str) -> bool:
    """Return whether the column takes the room that is left."""
    return name in table.TEXT and name != "solution"


def _heading(name: str, cells: Sequence[str]) -> str:
    return "\n".join(textwrap.wrap(name, max(HEADING, _widest(cells))))


def _widest(cells: Sequence[str]) -> int:
    return max(map(cell_len, cells), default=0)


def _width(drawn: Table) -> int:
    """Return the least width at which no number and no name is cut."""
    widths = [
        LEAST_NOTE if _is_note(name) else _widest([*_heading(name, cells).split("\n"), *cells])
        for name, *cells in zip(drawn.header, *drawn.rows, strict=True)
    ]
    return sum(widths) + GAP * (len(widths) - 1)


def _without(drawn: Table, names: Container[str]) -> Table:
    kept = [place for place, each in enumerate(drawn.header) if each not in names]
    header, *rows = (tuple(row[place] for place in kept) for row in (drawn.header, *drawn.rows))
    return Table(drawn.title, header, tuple(rows), drawn.footnotes)


def _style(name: str, only: str) -> str:
    mine = is_among(name.strip("()" + table.MARKS), only)
    peer = name.startswith("(")
    return "bold green" if mine else "dim" * peer
