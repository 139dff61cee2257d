"""Draw the README's picture, of the best solutions of each op, and the heat map of each track.

The SVGs are written as templates, so that they have real text, a few kilobytes, and colours that
follow the reader's light or dark mode.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from common.board.devices import Device
from common.board.page import rendering
from common.board.ranking import LIMITS, QUANTITIES, Entry, Quantity, Track, limit, share
from common.board.table import OUTDATED, STALE

FILE = "overview.svg"
BARS = 12
"""The most bars of a panel, for its fastest solutions."""
ROW, HEADING, HEAD, MARGIN, COLUMN = 23, 46, 72, 20, 428
"""Pixels of a row's height, a panel's heading, the picture's heading and margin, and a column."""
HOST = QUANTITIES[2]
"""What a call costs before the GPU starts; it has a panel beside the main quantity's."""


@dataclass(frozen=True, eq=False)
class Panel:
    """The best entries by a quantity, one for each folder, the fastest first."""

    track: Track
    quantity: Quantity
    entries: tuple[Entry, ...]


def panels(tracks: Iterable[Track]) -> list[Panel]:
    """Return the panels of each track: of its main quantity, and of the host's time forward."""
    panels = []
    for track in tracks:
        for quantity in dict.fromkeys((track.main, HOST)):
            best: dict[str, Entry] = {}
            for entry in track.placed(quantity):
                best.setdefault(entry.handle, entry)
            if best:
                panels.append(Panel(track, quantity, tuple(best.values())[:BARS]))
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
    stale = any(entry.stale for panel in drawn for entry in panel.entries)
    return rendering.draw(
        "picture.svg", device=device, height=height + ROW * stale, columns=placed, margin=MARGIN,
        heading=HEADING, line=ROW, mark=STALE, note=OUTDATED * stale,
    ) + "\n"  # fmt: skip


def _height(column: Sequence[Panel]) -> int:
    """Return the height in pixels of the panels, with their headings."""
    return sum(HEADING + ROW * len(panel.entries) for panel in column)


def _placed(column: Sequence[Panel]) -> Iterator[tuple[int, Panel]]:
    """Yield the panels below each other, each with the pixel row of its top."""
    tops = itertools.accumulate((_height([panel]) for panel in column), initial=HEAD)
    return zip(tops, column, strict=False)


# --- solutions by cases ---------------------------------------------------------------------------


def heat_map_of(track: Track) -> str:
    """Return the name of a track's heat map as a file."""
    return f"{track.op}-{track.name}-shares.svg"


def files(device: Device) -> dict[str, str]:
    """Return the device's pictures by the names of their files; an empty one shows nothing."""
    maps = {heat_map_of(track): heat_map(track, device) for track in device.tracks.values()}
    return {FILE: picture(device), **maps}


def heat_map(track: Track, device: Device) -> str:
    """Return a track's heat map as SVG; empty if no case ranks by the GPU's time."""
    quantities = [each for each in track.quantities if each.by == "gpu"][::-1]
    ranked = {row.case: limit(row)[1] for entry in track.entries for row in entry.cells.values()
              if any(each.times(row) for each in quantities)}  # fmt: skip
    cases = [case for case in dict(track.cells) if case in ranked]
    if not cases:
        return ""

    def reached(entry: Entry, quantity: Quantity, case: str) -> float | None:
        row = track.row(entry, (case, quantity.direction))
        return share(row) if row and quantity.times(row) else None

    rows = [
        (entry.solution + STALE * entry.stale, entry.peer,
         [[reached(entry, each, case) for case in cases] for each in quantities])
        for entry in track.entries
    ]  # fmt: skip
    limits = " or ".join(LIMITS[name] for name in LIMITS if name in ranked.values())
    note = f" {OUTDATED}." * any(entry.stale for entry in track.entries)
    return rendering.draw(
        "heat.svg", title=f"{track.title} on {device.name}",
        subtitle=f"Per cent of the limit: {limits}, timed beside it.{note}",
        blocks=[each.name for each in quantities], cases=cases, rows=rows,
    ) + "\n"  # fmt: skip
