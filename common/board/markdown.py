"""Boards as Markdown: LEADERBOARD.md whole, and the rankings between the README's two markers."""

from __future__ import annotations

import html
import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from common.board import table
from common.board.parts import parts
from common.board.plots import sweeps
from common.board.ranking import rank
from common.board.table import About, Table
from common.errors import UserError
from common.records.runs import Record, Results

BEGIN, END = "<!-- board -->", "<!-- /board -->"
EXPLANATION = """\
*× eager* is the geometric mean, over the track's cases, of plain torch's median time over the
solution's, taken in turn in one run, with its 95 % interval; entries that tie share a place.
*Worst share of limit* is the case furthest from its limit: a copy of the same bytes or dense
products of the same shapes, whichever takes longer, measured in the same run.
*error / eager's* is the rounding error in units of plain torch's own. Names in parentheses are
peers: libraries, not contributors. An entry that does not cover its track whole is not ranked.

*Parts of a call* takes an op's small cases apart: what the host takes to launch a call, with
autograd and under `no_grad`; what the GPU takes, all of the call being queued; and what it takes to
replay the CUDA graph of forward, where one can be captured: not of a call that waits for the GPU.
Calls in a row take the longer of host and GPU each."""


def leaderboard(boards: Iterable[Results], about: Mapping[str, About]) -> str:
    """LEADERBOARD.md: every timed device's rankings and times."""
    texts = ["# Leaderboard", "Written by `study leaderboard` from `results/`.", EXPLANATION]
    for results in boards:
        texts += _device(results, about, whole=True)
    return "\n\n".join(texts) + "\n"


def readme_board(boards: Iterable[Results], about: Mapping[str, About]) -> str:
    """The rankings alone."""
    return "\n\n".join(text for each in boards for text in _device(each, about, whole=False))


def insert(readme: Path, board: str) -> None:
    """Put the board between the file's markers."""
    text = readme.read_text()
    pattern = re.escape(BEGIN) + ".*?" + re.escape(END)
    whole = f"{BEGIN}\n\n{board}\n\n{END}"
    new, found = re.subn(pattern, lambda _: whole, text, flags=re.DOTALL)
    if not found:
        raise UserError(f"{readme.name} lacks the markers {BEGIN} and {END}: put them back")
    if new != text:
        readme.write_text(new)


def _device(results: Results, about: Mapping[str, About], whole: bool) -> list[str]:
    run = results.runs[-1]
    versions = ", ".join(f"{name} {version}" for name, version in results.versions.items())
    texts = [f"{'##' if whole else '###'} {run.device_name}", f"{versions}."]
    if whole and run.peak:
        texts.append(_peak(run.peak))
    known = [row for row in results.latest() if row.solution in about]
    for op, tracks in itertools.groupby(rank(known), key=lambda track: track.op):
        for track in tracks:
            texts += _drawn(table.ranking(track, about, timed=True))
            if whole:
                texts += [text for times in table.times(track) for text in _drawn(times)]
        if whole:
            texts += _parts(op, [row for row in known if row.op == op])
    if whole:
        drawn = sweeps.files(results, sweeps.rows_of(results, about))
        texts += [f"![{title}]({path})" for path, title in drawn.items()]
    absent = [f"- {peer}: {reason}" for peer, reason in run.absent.items()]
    return texts + (["Absent:", "\n".join(absent)] if absent and whole else [])


def _parts(op: str, rows: Sequence[Record]) -> list[str]:
    """Folded, since few ask for it."""
    texts = [text for drawn in parts(rows) for text in _drawn(drawn)]
    summary = f"<details>\n<summary>{op}: parts of a call</summary>"
    return [summary, *texts, "</details>"] if texts else []


def _peak(peak: Mapping[str, Any]) -> str:
    rates = ", ".join(f"{flops / 1e12:g} in {dtype}"
                      for dtype, flops in peak["flops_per_second"].items())  # fmt: skip
    moved = f"{peak['bytes_per_second'] / 1e12:g} TB/s"
    return f"Peak by datasheet: {moved}; TFLOP/s: {rates} ({peak['source']})."


def _drawn(drawn: Table) -> list[str]:
    lines = [drawn.header, tuple("---" for _ in drawn.header), *drawn.rows]
    return [f"**{drawn.title}**", "\n".join(map(_line, lines)), *drawn.footnotes]


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(map(_escaped, cells)) + " |"


def _escaped(cell: str) -> str:
    """Notes and reasons are contributors' text: it neither ends the cell nor becomes HTML."""
    return " ".join(html.escape(cell, quote=False).replace("|", "\\|").split())
