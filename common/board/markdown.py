"""Boards as Markdown: LEADERBOARD.md, and the texts between the README's markers."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from common import files, interfaces
from common.board import table
from common.board.columns import SPEED, ranking, summary
from common.board.devices import (
    Device,
    date,
    devices,
    lines_of,
    ordered,
    side_by_side,
)
from common.board.plots import overview, sweeps
from common.board.table import UNRANKED, About, Table, named, size
from common.errors import UserError
from common.paths import PLOTS, ROOT
from common.printable import printable
from common.records.runs import Results

MEMORY: dict[Literal["budget", "harness", "device"], str] = {
    "budget": "a budget of",
    "harness": "in the harness's own process at most",
    "device": "in all processes together, between two steps, at most",
}
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
not contributors. An entry that does not cover its whole track is not ranked. A further device has a
column of its *× eager*, with a dash where the solution is not ranked there.

Every case's times and memory, and the parts of a call, are on the page that `nox -s leaderboard`
writes (`nox -s leaderboard -- --serve`); `--times` prints them for scripts."""


def leaderboard(boards: Iterable[Results], about: Mapping[str, About]) -> str:
    """Return LEADERBOARD.md: contents, and every timed device's rankings and plots.

    The first device with a track shows the track's ranking; later devices add a column to it.
    """
    ordered_devices = devices(boards, about)
    contents, texts, shown = [], [], set[str]()
    for i, device in enumerate(ordered_devices):
        speeds = {speed.title: speed for speed in side_by_side(ordered_devices[i:], about)}
        drawn_here = dict(_rankings(device, speeds, about, shown))
        shown |= drawn_here.keys()
        if plots := _plots(device.results, about):
            drawn_here[f"Plots of {device.name}"] = plots
        links = ", ".join(map(_link, drawn_here))
        contents.append(f"- {_link(device.name)}" + f": {links}" * bool(links))
        texts += _device(device)
        for title, paragraphs in drawn_here.items():
            texts += [f"### {escaped(title)}", *paragraphs]
        texts += _absent(device.results)
    head = ["# Leaderboard", "Written by `nox -s leaderboard` from `results/`."]
    return "\n\n".join([*head, "\n".join(contents), EXPLANATION, *texts]) + "\n"


def drawn(of: Table) -> list[str]:
    """Return a table as paragraphs: title, rows and footnotes."""
    rules = tuple("---" if name in table.TEXT else "---:" for name in of.header)
    lines = [of.header, rules, *of.rows]
    return [f"**{of.title}**", "\n".join(map(_line, lines)), *map(escaped, of.footnotes)]


def escaped(text: str) -> str:
    """Escape a contributor's text, so that it neither ends a cell nor becomes HTML or Markdown."""
    plain = " ".join(html.escape(printable(text), quote=False).split())
    return MARKDOWN.sub(r"\\\g<0>", plain)


def anchor(title: str) -> str:
    """Return a heading's link target: `nvidia-h200` for `NVIDIA H200`."""
    return re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-")


def _link(title: str) -> str:
    return f"[{escaped(title)}](#{anchor(title)})"


def _device(device: Device) -> list[str]:
    results = device.results
    versions = ", ".join(f"{name} {version}" for name, version in results.versions.items())
    peak = _peak(results.runs[-1].peak)
    return [f"## {escaped(device.name)}", f"{versions}.", *peak, *_memory(results)]


def _rankings(
    device: Device, speeds: Mapping[str, Table], about: Mapping[str, About], shown: set[str]
) -> Iterator[tuple[str, list[str]]]:
    """Yield the title and the paragraphs of each track that no earlier device has shown."""
    for section in device.sections:
        for track in section.tracks:
            ranked = ranking(track, about, timed=True)
            if ranked.title not in shown:
                joined = _joined(ranked, speeds[f"{ranked.title}, {SPEED.name}"])
                yield ranked.title, drawn(joined)[1:]
        if section.left_out:
            title = f"{section.op}: left out on {device.name}"
            yield title, list(map(escaped, section.left_out))


def _joined(ranked: Table, speed_table: Table) -> Table:
    """Return a device's ranking with columns for the speeds on later devices.

    Solutions that only a later device ranks come last.
    """
    after_speed = ranked.header.index(SPEED.name) + 1
    speeds = {
        owner.solution: cells
        for owner, (_, _, *cells) in zip(speed_table.owners, speed_table.rows, strict=True)
    }
    here = {owner.solution for owner in ranked.owners}
    later = [owner for owner in speed_table.owners if owner.solution not in here]
    empty = ("",) * (len(ranked.header) - 2)
    rows = [*ranked.rows, *((UNRANKED, named(owner), *empty) for owner in later)]
    names = [owner.solution for owner in (*ranked.owners, *later)]
    others = [
        (
            f"on {device}",
            [speeds[name][i] if name in speeds else UNRANKED for name in names],
        )
        for i, device in enumerate(speed_table.header[2:])
        if any(cells[i] != UNRANKED for cells in speeds.values())
    ]
    return Table(
        ranked.title,
        (
            *ranked.header[:after_speed],
            *(heading for heading, _ in others),
            *ranked.header[after_speed:],
        ),
        tuple(
            (*cells[:after_speed], *(column[line] for _, column in others), *cells[after_speed:])
            for line, cells in enumerate(rows)
        ),
        tuple(dict.fromkeys((*ranked.footnotes, *speed_table.footnotes))),
    )


def _plots(results: Results, about: Mapping[str, About]) -> list[str]:
    files = sweeps.files(results, sweeps.plots(sweeps.rows_of(results, about)))
    pictures = [f"![{title}]({path})" for path, title in files.items()]
    return [*pictures, *map(escaped, lines_of(results.left_out("plot")))]


def _absent(results: Results) -> list[str]:
    absent = [f"- {peer}: {reason}" for peer, reason in results.absent.items()]
    return ["Absent:", "\n".join(absent)] if absent else []


def _peak(peak: Mapping[str, Any]) -> list[str]:
    if not peak:
        return []
    if "bytes_per_second" not in peak:
        return ["Peak: unknown; the copy and the products measured beside each solution bound it."]
    rates = ", ".join(f"{flops / 1e12:g} in {dtype}"
                      for dtype, flops in peak["flops_per_second"].items())  # fmt: skip
    moved = f"{peak['bytes_per_second'] / 1e12:g} TB/s"
    return [f"Peak by datasheet: {moved}; TFLOP/s: {rates} ({peak['source']})."]


def _memory(results: Results) -> list[str]:
    """Return a line on the GPU memory of the latest run that recorded its memory."""
    known = [results.memory[run.run] for run in results.runs if run.run in results.memory]
    if not known:
        return []
    latest = known[-1]
    amounts = [f"{MEMORY[name]} {size(latest[name])}" for name in MEMORY if name in latest]
    return [f"GPU memory of the latest run: {', '.join(amounts)}."]


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(map(escaped, cells)) + " |"


# --- the README: the first device, and a line for each other device -------------------------------


def board(boards: Iterable[Results], about: Mapping[str, About]) -> str:
    """Return the first device's fastest solutions of each op, and a line for each other device."""
    first, *others = devices(boards, about)
    mains = [section.tracks[0] for section in first.sections if section.tracks]
    _, rows, *notes = drawn(summary(mains, about))
    left_out = [
        f"**{section.op}** {escaped(line)}"
        for section in first.sections
        for line in section.left_out
    ]
    return "\n\n".join([f"### {escaped(first.name)}", rows, *notes, *left_out, *_others(others)])


def picture(boards: Iterable[Results], about: Mapping[str, About]) -> str:
    """Return the picture of the first device as Markdown; empty if the device has no picture."""
    (first,) = devices(ordered(boards)[:1], about)
    mains = [section.tracks[0] for section in first.sections if section.tracks]
    if not overview.panels(mains):
        return ""
    words = "Bars for each op: how many times as fast as plain torch the fastest solutions are"
    path = PLOTS.relative_to(ROOT) / first.results.path.name / overview.FILE
    return f"![{words}, on {escaped(first.name)}]({path})"


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
        files.replace(readme, new.encode())


def _others(others: Sequence[Device]) -> list[str]:
    """Return a line for each other device: its link, its date and the fastest of each op."""
    if not others:
        return []
    words = "The fastest solution of each op, with its × eager."
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
