"""Boards as Markdown: LEADERBOARD.md, and the texts between the README's markers."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from common import interfaces, paths
from common.board import overview, sweeps, table
from common.board.columns import ranking, summary
from common.board.devices import Device
from common.board.table import Table, named
from common.errors import UserError
from common.paths import PLOTS, ROOT
from common.printable import printable

MARKDOWN = re.compile(r"[\\`*\[\]|~]|\b_(?=\W|$)|(?<!\w)_")
"""Markdown's special characters; `_` within a name is not special."""
BOARD, PICTURE, OPS = "board", "picture", "ops"
"""The names of the README's markers: a text lies between `<!-- board -->` and `<!-- /board -->`."""
EXPLANATION = """\
*× eager* says how many times as fast as plain torch a solution is: the geometric mean, over the
track's cases, of plain torch's median time over the solution's, taken in turn in one run, with its
95 % interval. An entry whose interval reaches that of the leader of its group shares the leader's
place. *Worst share of limit* is the case furthest from its limit: a copy of the same bytes or dense
products of the same shapes, whichever takes longer, measured in the same run; *sustained* is the
share of dense products in a loop. *in a loop* is *× eager* where calls follow each other for half a
second, as in training, the host's work and the GPU's power included; it is measured where
arithmetic binds and in the cases that rank by host time. *error / eager's* is the rounding error in
units of plain torch's own. *peak memory* is the most that the calls of any case take beyond inputs
and results, what autograd keeps for backward among it. Names in parentheses are peers: libraries,
not contributors. An entry that does not cover its whole track is not ranked.

Every case's times and memory are on the page that `nox -s leaderboard` writes
(`site/index.html`); the records have them, and the parts of a call, for scripts."""


def leaderboard(devices: Sequence[Device]) -> str:
    """Return LEADERBOARD.md: contents, and every timed device's rankings and plots."""
    contents, texts = [], []
    for device in devices:
        sections = dict(_sections(device))
        contents.append(f"- {_link(device.name)}: {', '.join(map(_link, sections))}")
        texts += _facts(device)
        for title, paragraphs in sections.items():
            texts += [f"### {escaped(title)}", *paragraphs]
        if absent := device.results.absent:
            texts += ["Absent:", "\n".join(f"- {peer}: {why}" for peer, why in absent.items())]
    head = ["# Leaderboard", "Written by `nox -s leaderboard` from `results/`."]
    return "\n\n".join([*head, "\n".join(contents), EXPLANATION, *texts]) + "\n"


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


def _link(title: str) -> str:
    return f"[{escaped(title)}](#{anchor(title)})"


def _facts(device: Device) -> list[str]:
    """Return the device's name, versions and peak rates."""
    lines = [f"## {escaped(device.name)}", f"{device.versions}."]
    peak = device.results.runs[-1].peak
    if peak and "bytes_per_second" not in peak:
        unknown = "unknown; the copy and the products measured beside each solution bound it"
        lines.append(f"Peak: {unknown}.")
    elif peak:
        flops = peak["flops_per_second"].items()
        rates = ", ".join(f"{each / 1e12:g} in {dtype}" for dtype, each in flops)
        moved = f"{peak['bytes_per_second'] / 1e12:g} TB/s"
        lines.append(f"Peak by datasheet: {moved}; TFLOP/s: {rates} ({peak['source']}).")
    return lines


def _sections(device: Device) -> Iterator[tuple[str, list[str]]]:
    """Yield the title and the paragraphs of each track, of left-out cases and of the plots."""
    for op, tracks in device.ops.items():
        for track in tracks:
            yield f"{track.title} on {device.name}", drawn(ranking(track))[1:]
        if lines := device.left_out(op):
            yield f"{op}: left out on {device.name}", list(map(escaped, lines))
    folder, drawings = PLOTS.relative_to(ROOT) / device.slug, sweeps.of_device(device)
    pictures = [f"![{each.sweep.title}]({folder}/{each.sweep.name}.svg)" for each in drawings]
    if plots := [*pictures, *map(escaped, device.left_out(tier="plot"))]:
        yield f"Plots of {device.name}", plots


# --- the README: the first device, and a line for each other device -------------------------------


def board(devices: Sequence[Device]) -> str:
    """Return the first device's fastest solutions of each op, and a line for each other device."""
    first, *others = devices
    _, rows, *notes = drawn(summary(first.mains))
    left_out = [f"**{op}** {escaped(line)}" for op in first.ops for line in first.left_out(op)]
    if others:
        words = "The fastest solution of each op, with its × eager."
        left_out += ["### Other devices", words, "\n".join(map(_other, others))]
    return "\n\n".join([f"### {escaped(first.name)}", rows, *notes, *left_out])


def _other(device: Device) -> str:
    """Return the line of another device: its link, its date and the fastest of each op."""
    link = f"[{escaped(device.name)}](LEADERBOARD.md#{anchor(device.name)})"
    leaders = [track.entries[0] for track in device.mains]
    speeds = [f"{named(entry)} {entry.score.value:.2f}" for entry in leaders if entry.score]
    head = ", ".join(filter(None, [link, device.date]))
    return f"- {head}: {escaped(', '.join(speeds)) or 'no solution is ranked'}"


def picture(device: Device) -> str:
    """Return the device's picture as Markdown; empty if no solution is ranked."""
    if not overview.panels(device.mains):
        return ""
    words = "Bars for each op: how many times as fast as plain torch the fastest solutions are"
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
