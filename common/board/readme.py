"""The README's board and picture, between markers: one device, and a line for each other."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from common import files
from common.board.devices import Device, date, devices, further, ordered
from common.board.markdown import SIDE_BY_SIDE, anchor, drawn, escaped
from common.board.plots import overview
from common.board.summary import summary
from common.board.table import About, named
from common.errors import UserError
from common.paths import PLOTS, ROOT
from common.records.runs import Results

BOARD, PICTURE = "board", "picture"
"""The names of the markers: `<!-- board -->` stands before the board, `<!-- /board -->` behind."""


def board(boards: Iterable[Results], about: Mapping[str, About], more: int = 0) -> str:
    """Return one short table an op of the first device, and a line for each other device.

    `more` is the number of devices that have records and are not among the boards.
    """
    first, *others = devices(boards, about)
    texts = [f"### {escaped(first.name)}"]
    for section in first.sections:
        texts += drawn(summary(section.tracks, about)) if section.tracks else [f"**{section.op}**"]
        texts += map(escaped, section.left_out)
    return "\n\n".join([*texts, *_others(others), *further(more)])


def picture(boards: Iterable[Results], about: Mapping[str, About]) -> str:
    """Return the picture of the first device as Markdown; nothing where none was drawn."""
    (first,) = devices(ordered(boards)[:1], about)
    mains = [section.tracks[0] for section in first.sections if section.tracks]
    if not overview.panels(mains):
        return ""
    words = "Bars for each op: how many times as fast as plain torch the fastest solutions are"
    path = PLOTS.relative_to(ROOT) / first.results.path.name / overview.FILE
    return f"![{words}, on {escaped(first.name)}]({path})"


def insert(readme: Path, text: str, name: str = BOARD) -> None:
    """Put text between the two markers of a name.

    Raises:
        UserError: A marker is missing.
    """
    begin, end = f"<!-- {name} -->", f"<!-- /{name} -->"
    old = readme.read_text(encoding="utf-8")
    pattern = re.escape(begin) + ".*?" + re.escape(end)
    new, found = re.subn(pattern, lambda _: f"{begin}\n\n{text}\n\n{end}", old, flags=re.DOTALL)
    if not found:
        raise UserError(f"{readme.name} lacks the markers {begin} and {end}: put them back")
    if new != old:
        files.replace(readme, new.encode())


def _others(others: Sequence[Device]) -> list[str]:
    """Return a line for each other device: its section, its date and the fastest of each op."""
    if not others:
        return []
    link = f"[side by side](LEADERBOARD.md#{anchor(SIDE_BY_SIDE)})"
    words = f"The fastest solution of each op, with its × eager; all devices {link}."
    return ["### Other devices", words, "\n".join(map(_other, others))]


def _other(device: Device) -> str:
    link = f"[{escaped(device.name)}](LEADERBOARD.md#{anchor(device.name)})"
    head = ", ".join(filter(None, [link, date(device.results)]))
    leaders = [
        f"{named(section.tracks[0].entries[0])} {score.value:.2f}"
        for section in device.sections
        if section.tracks and (score := section.tracks[0].entries[0].score)
    ]
    return f"- {head}: {escaped(', '.join(leaders)) or 'no solution is ranked'}"
