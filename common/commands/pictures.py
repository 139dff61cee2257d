"""The wrong elements of a result, drawn for a terminal."""

from __future__ import annotations

from rich.text import Text

from common.verdicts import RIGHT, SOME, WRONG, Picture

STYLES = {WRONG: "red", SOME: "yellow", RIGHT: "dim"}
MARGIN = 4 * " "
TICKS = 8
"""The columns from one index in the heading to the next."""


def draw(picture: Picture) -> Text:
    """Return the drawing: a heading, a line for each row of cells, and the meaning of a cell.

    Example, of a result of 4 positions and 16 features:

                   feature
                   0       8
        position 0 ················
                 1 ████████········
                 2 ████████········
                 3 ████████········
                   █ wrong  · right; a cell: every batch and head
    """
    height, width = picture.block
    labels = [str(index * height) if picture.rows else "" for index in range(len(picture.cells))]
    margin = max(map(len, labels))
    indent = " " * (len(MARGIN) + len(picture.rows) + margin + 2)
    ticks = range(0, len(picture.cells[0]), TICKS)
    heading = "".join(f"{index * width:<{TICKS}}" for index in ticks).rstrip()
    drawing = Text(f"{indent}{picture.columns}\n{indent}{heading}\n")
    for index, (label, cells) in enumerate(zip(labels, picture.cells, strict=True)):
        name = "" if index else picture.rows
        drawing.append(f"{MARGIN}{name:{len(picture.rows)}} {label:>{margin}} ")
        for mark in cells:
            drawing.append(mark, STYLES[mark])
        drawing.append("\n")
    return drawing.append(f"{indent}{_legend(picture)}")


def _legend(picture: Picture) -> str:
    """Return the meaning of the marks and of a cell."""
    marks = "".join(picture.cells)
    named = ((WRONG, "wrong"), (SOME, "wrong in part"), (RIGHT, "right"))
    meaning = "  ".join(f"{mark} {words}" for mark, words in named if mark in marks)
    height, width = picture.block
    cell = f"{height} x {width} elements" if picture.block != (1, 1) else ""
    others = f"every {' and '.join(picture.others)}" if picture.others else ""
    holds = " of ".join(filter(None, (cell, others)))
    return meaning + f"; a cell: {holds}" * bool(holds)
