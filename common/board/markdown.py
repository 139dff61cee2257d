"""Boards as Markdown: LEADERBOARD.md, and the texts between the README's markers."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from markupsafe import Markup

from common import interfaces, paths
from common.board import overview, sweeps, table
from common.board.columns import ranking, summary
from common.board.devices import Device
from common.board.page.rendering import draw
from common.board.table import Table
from common.errors import UserError
from common.paths import PLOTS, ROOT
from common.peaks import PEAKS
from common.printable import printable
from common.records import runs

MARKDOWN = re.compile(r"[\\`*\[\]|~]|\b_(?=\W|$)|(?<!\w)_")
"""Markdown's special characters; `_` within a name is not special."""
BOARD, PICTURE, OPS = "board", "picture", "ops"
"""The names of the README's markers: a text lies between `<!-- board -->` and `<!-- /board -->`."""


def leaderboard(devices: Sequence[Device]) -> str:
    """Return LEADERBOARD.md: contents, and every timed device's rankings and plots."""
    boards = {
        device: {title: Markup("\n\n".join(lines)) for title, lines in _sections(device)}
        for device in devices
    }
    return draw("leaderboard.md", boards=boards, escaped=escaped, anchor=anchor, peaks=PEAKS)


def drawn(of: Table) -> list[str]:
    """Return a table as paragraphs: title, rows and footnotes."""
    rules = tuple("---" if name in table.TEXT else "---:" for name in of.header)
    lines = [f"| {' | '.join(map(escaped, cells))} |" for cells in (of.header, rules, *of.rows)]
    return [f"**{of.title}**", "\n".join(lines), *map(escaped, of.footnotes)]


def escaped(text: str) -> str:
    """Escape a contributor's text, so that it neither ends a cell nor becomes HTML or Markdown."""
    plain = " ".join(html.escape(printable(text), quote=False).split())
    return MARKDOWN.sub(r"\\\g<0>", plain)


def anchor(title: str) -> str:
    """Return a heading's link target: `nvidia-h200` for `NVIDIA H200`."""
    return re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-")


def _sections(device: Device) -> Iterator[tuple[str, list[str]]]:
    """Yield the title and the paragraphs of each track and of the plots."""
    folder, drawings = PLOTS.relative_to(ROOT) / device.slug, sweeps.of_device(device)
    names = [path.stem.partition("-") for path in runs.files(device.results.path)]
    for track in device.tracks.values():
        path = folder / overview.heat_map_of(track)
        heat = overview.heat_map(track, device)
        shown = [f"![{track.title}: shares of the limit]({path})"] if heat else []
        words = [escaped(track.words)] if track.words else []
        used = {row.run for entry in track.entries for row in entry.cells.values()}
        origin = ", ".join(f"{day[:8]} {run}" for day, _, run in names if run in used)
        lines = [*words, *drawn(ranking(track))[1:], f"Rows of the runs {origin}.", *shown]
        yield f"{track.title} on {device.name}", lines
    if drawings:
        pictures = [f"![{each.sweep.title}]({folder}/{each.sweep.name}.svg)" for each in drawings]
        yield f"Plots of {device.name}", pictures


# --- the README: the first device, and a link for each other device -------------------------------


def board(devices: Sequence[Device]) -> str:
    """Return the first device's fastest solutions of each op, and a link for each other device."""
    _, rows, *notes = drawn(summary(devices[0].mains))
    ranked = Markup("\n\n".join([rows, *notes]))
    names = {"escaped": escaped, "anchor": anchor}
    return draw("readme.md", devices=devices, ranked=ranked, **names).rstrip()


def picture(device: Device) -> str:
    """Return the device's picture as Markdown; empty if no solution is ranked."""
    if not overview.panels(device.mains):
        return ""
    words = "Bars for each op: the shares of the limit that the fastest solutions reach"
    path = PLOTS.relative_to(ROOT) / device.slug / overview.FILE
    return f"![{words}, on {escaped(device.name)}]({path})"


def ops(head: tuple[str, str]) -> str:
    """Return the list of ops with their signatures, in the order of boards."""
    rows = [
        f"| [`{interface.op}`](common/ops/{interface.op}.py) | `{interface.signature}` |"
        for interface in interfaces.known().values()
    ]
    return "\n".join([f"| {head[0]} | {head[1]} |", "|---|---|", *rows])


def insert(readme: Path, text: str, name: str = BOARD) -> None:
    """Replace the text between the two markers of a name.

    Raises:
        UserError: A marker is missing.
    """
    begin, end = f"<!-- {name} -->", f"<!-- /{name} -->"
    old = readme.read_text(encoding="utf-8")
    pattern = re.escape(begin) + ".*?" + re.escape(end)
    new, count = re.subn(pattern, lambda _: f"{begin}\n\n{text}\n\n{end}", old, flags=re.DOTALL)
    if not count:
        raise UserError(f"{readme.name} lacks the markers {begin} and {end}: put them back")
    if new != old:
        paths.replace(readme, new.encode())
