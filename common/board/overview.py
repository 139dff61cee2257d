"""Draw the README's picture: the best solutions' speeds in units of plain torch's, for each op.

The SVG is written without matplotlib, so that it has real text, a few kilobytes, and colours that
follow the reader's light or dark mode.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from common.board.devices import Device
from common.board.page import rendering
from common.board.ranking import Entry, Track

FILE = "overview.svg"
BARS = 12
"""The most bars of one op, for its fastest solutions."""
ROW, HEADING, HEAD, MARGIN, COLUMN = 23, 46, 72, 20, 428
"""Pixels of a row's height, a panel's heading, the picture's heading and margin, and a column."""


def panels(tracks: Iterable[Track]) -> list[Track]:
    """Return each track that ranks a solution, with the best entry of each folder.

    The best is the first: a track's entries are in the order of their speeds.
    """
    panels = []
    for track in tracks:
        best: dict[str, Entry] = {}
        for entry in track.entries:
            if entry.score:
                best.setdefault(entry.handle, entry)
        if best:
            panels.append(replace(track, entries=tuple(best.values())[:BARS]))
    return panels


def picture(device: Device) -> str:
    """Return the panels in two columns as the text of an SVG file; empty if none is ranked."""
    drawn = panels(device.mains)
    if not drawn:
        return ""
    # the higher column as low as possible
    splits = [(drawn[:i], drawn[i:]) for i in range(1, len(drawn) + 1)]
    columns = min(splits, key=lambda columns: max(map(_height, columns)))
    height = HEAD + max(map(_height, columns)) + MARGIN
    placed = [(MARGIN + COLUMN * i, list(_placed(column))) for i, column in enumerate(columns)]
    sizes = {"margin": MARGIN, "heading": HEADING, "line": ROW}
    return (
        rendering.draw("picture.svg", device=device, height=height, columns=placed, **sizes) + "\n"
    )


def _height(column: Sequence[Track]) -> int:
    """Return the height in pixels of the panels, with their headings."""
    return sum(HEADING + ROW * len(panel.entries) for panel in column)


def _placed(column: Sequence[Track]) -> Iterator[tuple[int, Track]]:
    """Yield the panels below each other, each with the pixel row of its top."""
    tops = itertools.accumulate((_height([panel]) for panel in column), initial=HEAD)
    return zip(tops, column, strict=False)
