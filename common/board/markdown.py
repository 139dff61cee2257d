"""Boards as Markdown: LEADERBOARD.md, and what stands between the README's markers."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from common import files, interfaces
from common.board import table
from common.board.columns import ranking, summary
from common.board.devices import (
    Device,
    Section,
    date,
    devices,
    lines_of,
    ordered,
    side_by_side,
)
from common.board.plots import overview, sweeps
from common.board.table import About, Table, named, parts, size
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
"""What would become code, emphasis, a link, a picture, a cell; `_` within a name is none of it."""
BOARD, PICTURE, OPS = "board", "picture", "ops"
"""The names of the README's markers: `<!-- board -->` stands before, `<!-- /board -->` behind."""
SIDE_BY_SIDE = "Devices side by side"
PORTABILITY = """\
*× eager* of each solution on each device. A dash: it is not ranked there."""
EXPLANATION = """\
*× eager* says how many times as fast as plain torch a solution is: the geometric mean, over the
track's cases, of plain torch's median time over the solution's, taken in turn in one run, with its
95 % interval. An entry whose interval reaches that of the leader of its group shares the leader's
place. *Worst share of limit* is the case furthest from its limit: a copy of the same bytes or dense
products of the same shapes, whichever takes longer, measured in the same run; *sustained* is the
share of dense products where calls follow each other for half a second, as in training, and
the GPU's power is the limit of both. *error / eager's* is the rounding error in units of plain
torch's own. *peak memory* is the most that the calls of any case take beyond inputs and results,
what autograd keeps for backward among it. Names in parentheses are peers: libraries, not
contributors. An entry that does not cover its whole track is not ranked.

*Parts of a call* takes an op's small cases apart: the host's time to launch a call, with autograd
and under `no_grad`; the GPU's time for a call that is queued already; and the GPU's time to replay
the CUDA graph of forward, where one can be captured, which a call that waits for the GPU does not
allow, and follows its inputs, which one that was captured with tables of old angles does not. Calls
in a row take the longer of host and GPU time each."""


def leaderboard(boards: Iterable[Results], about: Mapping[str, About]) -> str:
    """Return LEADERBOARD.md: every timed device's rankings, times and plots.

    Two devices or more stand side by side at the end.
    """
    found = devices(boards, about)
    texts = ["# Leaderboard", "Written by `nox -s leaderboard` from `results/`.", EXPLANATION]
    for device in found:
        texts += _device(device, about)
    if len(found) > 1:
        texts += [f"## {SIDE_BY_SIDE}", PORTABILITY]
        texts += _all_drawn(side_by_side(found, about))
    return "\n\n".join(texts) + "\n"


def drawn(of: Table) -> list[str]:
    """Return a table as paragraphs: its title, its rows and its footnotes."""
    rules = tuple("---" if name in table.TEXT else "---:" for name in of.header)
    lines = [of.header, rules, *of.rows]
    return [f"**{of.title}**", "\n".join(map(_line, lines)), *map(escaped, of.footnotes)]


def escaped(text: str) -> str:
    """Escape text of others, which may neither end a cell nor become HTML or Markdown."""
    plain = " ".join(html.escape(printable(text), quote=False).split())
    return MARKDOWN.sub(r"\\\g<0>", plain)


def anchor(title: str) -> str:
    """Return the name by which a heading is linked: `nvidia-h200` for `NVIDIA H200`."""
    return re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-")


def _device(device: Device, about: Mapping[str, About]) -> list[str]:
    results = device.results
    run = results.runs[-1]
    versions = ", ".join(f"{name} {version}" for name, version in results.versions.items())
    texts = [f"## {escaped(device.name)}", f"{versions}.", *_peak(run.peak), *_memory(results)]
    for section in device.sections:
        texts += _section(section, about)
    plots = sweeps.files(results, sweeps.plots(sweeps.rows_of(results, about)))
    texts += [f"![{title}]({path})" for path, title in plots.items()]
    texts += map(escaped, lines_of(results.left_out("plot")))
    absent = [f"- {peer}: {reason}" for peer, reason in results.absent.items()]
    return texts + (["Absent:", "\n".join(absent)] if absent else [])


def _section(section: Section, about: Mapping[str, About]) -> list[str]:
    texts = [] if section.tracks else [f"**{section.op}**"]
    for track in section.tracks:
        texts += drawn(ranking(track, about, timed=True))
        texts += _all_drawn(table.times(track))
    texts += map(escaped, section.left_out)
    memory = [each for track in section.tracks for each in table.memory(track)]
    texts += _folded(f"{section.op}: peak memory", memory)
    return texts + _folded(f"{section.op}: parts of a call", parts(section.rows))


def _folded(title: str, tables: Sequence[Table]) -> list[str]:
    """Return tables that few readers want, folded."""
    summary = f"<details>\n<summary>{title}</summary>"
    return [summary, *_all_drawn(tables), "</details>"] if tables else []


def _all_drawn(tables: Iterable[Table]) -> list[str]:
    return [text for each in tables for text in drawn(each)]


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
    """Return a line on the memory of the GPU that the latest run took, where it is known."""
    known = [results.memory[run.run] for run in results.runs if run.run in results.memory]
    if not known:
        return []
    latest = known[-1]
    amounts = [f"{MEMORY[name]} {size(latest[name])}" for name in MEMORY if name in latest]
    return [f"GPU memory of the latest run: {', '.join(amounts)}."]


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(map(escaped, cells)) + " |"


# --- the README: one device, and a line for each other --------------------------------------------


def board(boards: Iterable[Results], about: Mapping[str, About]) -> str:
    """Return one short table an op of the first device, and a line for each other device."""
    first, *others = devices(boards, about)
    texts = [f"### {escaped(first.name)}"]
    for section in first.sections:
        texts += drawn(summary(section.tracks, about)) if section.tracks else [f"**{section.op}**"]
        texts += map(escaped, section.left_out)
    return "\n\n".join([*texts, *_others(others)])


def picture(boards: Iterable[Results], about: Mapping[str, About]) -> str:
    """Return the picture of the first device as Markdown; nothing where none was drawn."""
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
        f"| [`{each.op}`](common/ops/{each.op}.py) | `{each.signature}` |"
        for each in interfaces.known().values()
    ]
    return "\n".join([f"| {head[0]} | {head[1]} |", "|---|---|", *rows])


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
