"""Draw the README's picture: the best solutions' speeds in units of plain torch's, for each op.

The SVG is written without matplotlib, so that it has real text, a few kilobytes, and colours that
follow the reader's light or dark mode.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from html import escape

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
    title = "How many times as fast as plain torch"
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}"'
        f' height="{height}" role="img">',
        f"<title>{escape(f'{title}: {device.name}')}</title>",
        f"<style>\n{STYLE}\n</style>",
        f'<rect class="page" width="{WIDTH}" height="{height}" rx="8"/>',
        _text(MARGIN, 34, title, "title"),
        _text(MARGIN, 54, device.name, "faint"),
    ]
    for x, kind, words in ((WIDTH - 236, "mine", "contributor"), (WIDTH - 106, "peer", "library")):
        lines += [_bar(x, 23, 12, kind), _text(x + 18, 34, words, "faint")]
    for x, column in zip((MARGIN, MARGIN + COLUMN), columns, strict=True):
        y = HEAD
        for panel in column:
            lines += _panel(panel, x, y)
            y += _height([panel])
    return "\n".join([*lines, "</svg>"]) + "\n"


def _height(column: Sequence[Track]) -> int:
    """Return the height in pixels of the panels, with their headings."""
    return sum(HEADING + ROW * len(panel.entries) for panel in column)


def _panel(panel: Track, x: int, y: int) -> list[str]:
    """Draw the heading, the line at 1, and for each entry a name, a bar and the value."""
    scores = [entry.score.value for entry in panel.entries if entry.score]
    scale, start = BAR / max(*scores, 1.0), x + LABEL
    one, top = start + scale, y + HEADING - 12
    heading = f'<text x="{x}" y="{y + 20}"><tspan class="op">{escape(panel.op)}</tspan>'
    lines = [f'{heading}<tspan class="faint" dx="8">{escape(panel.name)}</tspan></text>']
    for number, (entry, score) in enumerate(zip(panel.entries, scores, strict=True)):
        row = top + ROW * number
        label = f"({entry.handle})" if entry.peer else entry.handle
        label = label if len(label) <= 20 else label[:19] + "…"  # the column's width
        right = start + max(score, 1.0) * scale  # of both the bar and the line at 1
        lines += [
            f'<text x="{start - 8}" y="{row + 13}" text-anchor="end">{escape(label)}</text>',
            _bar(start, row + 2, score * scale, "peer" if entry.peer else "mine"),
            _text(right + 6, row + 13, f"{score:.2f} ×", "faint"),
        ]
    bottom = top + ROW * len(panel.entries)
    lines.append(
        f'<line class="one" x1="{one:.1f}" y1="{top - 3}" x2="{one:.1f}" y2="{bottom - 2}"'
        ' stroke-dasharray="3 3"/>'
    )
    return lines


def _bar(x: float, y: float, width: float, kind: str) -> str:
    return f'<rect class="{kind}" x="{x}" y="{y}" width="{width:.1f}" height="14" rx="2"/>'


def _text(x: float, y: float, words: str, kind: str) -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y}">{escape(words)}</text>'
