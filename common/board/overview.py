"""Draw the README's picture, of the best solutions of each op, and the heat map of each track.

The SVGs are written as templates, so that they have real text, a few kilobytes, and colours that
follow the reader's light or dark mode.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
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
    """Return the panels, two beside each other, as the text of an SVG; empty if none is ranked."""
    drawn = panels(device.mains)
    if not drawn:
        return ""
    pairs = [drawn[at : at + 2] for at in range(0, len(drawn), 2)]
    heights = [HEADING + ROW * max(len(panel.entries) for panel in pair) for pair in pairs]
    tops = [*itertools.accumulate(heights, initial=HEAD)]
    placed = [(MARGIN + COLUMN * at, top, panel) for top, pair in zip(tops, pairs, strict=False)
              for at, panel in enumerate(pair)]  # fmt: skip
    height = tops[-1] + MARGIN
    stale = any(entry.stale for panel in drawn for entry in panel.entries)
    return rendering.draw(
        "picture.svg", device=device, height=height + ROW * stale, panels=placed, margin=MARGIN,
        heading=HEADING, line=ROW, mark=STALE, note=OUTDATED * stale,
    ) + "\n"  # fmt: skip


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
        (entry.solution, STALE * entry.stale, entry.peer,
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
