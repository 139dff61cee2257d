"""Draw the README's picture: the best solutions' speeds in units of plain torch's, for each op.

The SVG is written without matplotlib, so that it has real text, a few kilobytes, and colours that
follow the reader's light or dark mode.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from html import escape
from pathlib import Path

from common import files
from common.board.devices import Device
from common.board.ranking import Entry, Track

FILE = "overview.svg"
BARS = 12
"""The most bars of one op, for its fastest solutions."""
WIDTH, COLUMN, LABEL, BAR = 880, 428, 160, 186
ROW, HEADING, HEAD, MARGIN = 23, 46, 72, 20
"""Pixels of a row's height, a panel's heading, the picture's heading and the picture's margin."""
STYLE = """\
text { font: 14px system-ui, "Segoe UI", Helvetica, Arial, sans-serif; fill: #1f2328 }
.title { font-size: 17px; font-weight: 600 } .op { font-weight: 600 } .faint { fill: #59636e }
.page { fill: #ffffff } .mine { fill: #0969da } .peer { fill: #a8b1bb } .one { stroke: #59636e }
@media (prefers-color-scheme: dark) {
text { fill: #f0f6fc } .faint { fill: #9198a1 } .page { fill: #0d1117 } .mine { fill: #4493f8 }
.peer { fill: #656c76 } .one { stroke: #9198a1 }
}"""


def draw(device: Device, folder: Path) -> Path | None:
    """Write `folder/overview.svg` of a timed device, and return the file's path.

    Write nothing and return None if no solution is ranked.
    """
    drawn = panels(device.mains)
    if not drawn:
        return None
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / FILE
    files.replace(path, picture(drawn, device.name).encode())
    return path


def panels(tracks: Sequence[Track]) -> list[Track]:
    """Return each track that ranks a solution, with the best entry of each folder."""
    panels = [replace(track, entries=_best(track)) for track in tracks]
    return [panel for panel in panels if panel.entries]


def picture(drawn: Sequence[Track], device: str) -> str:
    """Return the panels in two columns, as the text of an SVG file."""
    columns = _columns(drawn)
    height = HEAD + max(map(_height, columns)) + MARGIN
    title = "How many times as fast as plain torch"
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}"'
        f' height="{height}" role="img">',
        f"<title>{escape(f'{title}: {device}')}</title>",
        f"<style>\n{STYLE}\n</style>",
        f'<rect class="page" width="{WIDTH}" height="{height}" rx="8"/>',
        _text(MARGIN, 34, title, "title"),
        _text(MARGIN, 54, device, "faint"),
        *_legend(),
    ]
    for x, column in zip((MARGIN, MARGIN + COLUMN), columns, strict=True):
        y = HEAD
        for panel in column:
            lines += _panel(panel, x, y)
            y += _height([panel])
    return "\n".join([*lines, "</svg>"]) + "\n"


def _best(track: Track) -> tuple[Entry, ...]:
    """Return each folder's best entry; the track's own order is by speed."""
    entries: dict[str, Entry] = {}
    for entry in track.entries:
        if entry.score:
            entries.setdefault(entry.handle, entry)
    return tuple(entries.values())[:BARS]


def _columns(drawn: Sequence[Track]) -> tuple[Sequence[Track], Sequence[Track]]:
    """Split the panels into two columns with the smallest possible height of the higher column."""
    splits = [(drawn[:i], drawn[i:]) for i in range(1, len(drawn) + 1)]
    return min(splits, key=lambda columns: max(map(_height, columns)))


def _height(column: Sequence[Track]) -> int:
    """Return the height in pixels of the panels, with their headings."""
    return sum(HEADING + ROW * len(panel.entries) for panel in column)


def _legend() -> list[str]:
    """Return the key to the bars' colours, at the top right."""
    lines, x = [], WIDTH - 236
    for kind, words, width in (("mine", "contributor", 112), ("peer", "library", 0)):
        lines += [_bar(x, 23, 12, kind), _text(x + 18, 34, words, "faint")]
        x += width + 18
    return lines


def _panel(panel: Track, x: int, y: int) -> list[str]:
    fastest = max(entry.score.value for entry in panel.entries if entry.score)
    scale, start = BAR / max(fastest, 1.0), x + LABEL
    one, top = start + scale, y + HEADING - 12
    heading = f'<text x="{x}" y="{y + 20}"><tspan class="op">{escape(panel.op)}</tspan>'
    lines = [f'{heading}<tspan class="faint" dx="8">{escape(panel.name)}</tspan></text>']
    for entry, row in zip(panel.entries, itertools.count(), strict=False):
        lines += _entry(entry, start, top + ROW * row, scale)
    bottom = top + ROW * len(panel.entries)
    lines.append(
        f'<line class="one" x1="{one:.1f}" y1="{top - 3}" x2="{one:.1f}" y2="{bottom - 2}"'
        ' stroke-dasharray="3 3"/>'
    )
    return lines


def _entry(entry: Entry, x: int, y: int, scale: float) -> list[str]:
    """Draw a name, a bar, and the value to the right of both the bar and the line at 1."""
    assert entry.score
    label = f"({entry.handle})" if entry.peer else entry.handle
    width = entry.score.value * scale
    return [
        f'<text x="{x - 8}" y="{y + 13}" text-anchor="end">{escape(_cut(label))}</text>',
        _bar(x, y + 2, width, "peer" if entry.peer else "mine"),
        _text(x + max(width, scale) + 6, y + 13, f"{entry.score.value:.2f} ×", "faint"),
    ]


def _cut(label: str) -> str:
    """Shorten a label that is too wide for its column."""
    return label if len(label) <= 20 else label[:19] + "…"


def _bar(x: float, y: float, width: float, kind: str) -> str:
    return f'<rect class="{kind}" x="{x}" y="{y}" width="{width:.1f}" height="14" rx="2"/>'


def _text(x: float, y: float, words: str, kind: str) -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y}">{escape(words)}</text>'
