"""Boards as Markdown: LEADERBOARD.md, and the README's short tables between two markers."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from common.board import table
from common.board.parts import parts
from common.board.plots import sweeps
from common.board.summary import summary
from common.board.table import About, Table
from common.errors import UserError
from common.records.runs import Record, Results

BEGIN, END = "<!-- board -->", "<!-- /board -->"
LEFT = ("solution", "note")
"""The columns of text; numbers stand at the right."""
EXPLANATION = """\
*× eager* says how many times as fast as plain torch a solution is: the geometric mean, over the
track's cases, of plain torch's median time over the solution's, taken in turn in one run, with its
95 % interval. An entry whose interval reaches that of the leader of its group shares the leader's
place. *Worst share of limit* is the case furthest from its limit: a copy of the same bytes or dense
products of the same shapes, whichever takes longer, measured in the same run; *sustained* is the
share of dense products where calls follow each other for half a second, as in a training step, and
the GPU's power is the limit of both. *error / eager's* is the rounding error in units of plain
torch's own. Names in parentheses are peers: libraries, not contributors. An entry that does not
cover its whole track is not ranked.

*Parts of a call* takes an op's small cases apart: the host's time to launch a call, with autograd
and under `no_grad`; the GPU's time for a call that is queued already; and the GPU's time to replay
the CUDA graph of forward, where one can be captured, which a call that waits for the GPU does not
allow. Calls in a row take the longer of host and GPU time each."""


def leaderboard(boards: Iterable[Results], about: Mapping[str, About]) -> str:
    """Return LEADERBOARD.md: every timed device's rankings, times and plots."""
    texts = ["# Leaderboard", "Written by `study leaderboard` from `results/`.", EXPLANATION]
    for results in boards:
        texts += _device(results, about)
    return "\n\n".join(texts) + "\n"


def readme_board(boards: Iterable[Results], about: Mapping[str, About]) -> str:
    """Return the README's board: for every timed device one short table an op."""
    return "\n\n".join(text for results in boards for text in _short(results, about))


def insert(readme: Path, board: str) -> None:
    """Put the board between the file's markers.

    Raises:
        UserError: a marker is missing.
    """
    text = readme.read_text()
    pattern = re.escape(BEGIN) + ".*?" + re.escape(END)
    whole = f"{BEGIN}\n\n{board}\n\n{END}"
    new, found = re.subn(pattern, lambda _: whole, text, flags=re.DOTALL)
    if not found:
        raise UserError(f"{readme.name} lacks the markers {BEGIN} and {END}: put them back")
    if new != text:
        readme.write_text(new)


def _short(results: Results, about: Mapping[str, About]) -> list[str]:
    texts = [f"### {results.runs[-1].device_name}"]
    for _, tracks in table.tracks_by_op(_known(results, about)):
        texts += _drawn(summary(tracks, about))
    return texts


def _device(results: Results, about: Mapping[str, About]) -> list[str]:
    run = results.runs[-1]
    versions = ", ".join(f"{name} {version}" for name, version in results.versions.items())
    texts = [f"## {run.device_name}", f"{versions}."]
    if run.peak:
        texts.append(_peak(run.peak))
    known = _known(results, about)
    for op, tracks in table.tracks_by_op(known):
        for track in tracks:
            texts += _drawn(table.ranking(track, about, timed=True))
            texts += [text for times in table.times(track) for text in _drawn(times)]
        texts += _parts(op, [row for row in known if row.op == op])
    drawn = sweeps.files(results, sweeps.rows_of(results, about))
    texts += [f"![{title}]({path})" for path, title in drawn.items()]
    absent = [f"- {peer}: {reason}" for peer, reason in run.absent.items()]
    return texts + (["Absent:", "\n".join(absent)] if absent else [])


def _known(results: Results, about: Mapping[str, About]) -> list[Record]:
    """Return the latest rows of the solutions that are still in the tree."""
    return [row for row in results.latest() if row.solution in about]


def _parts(op: str, rows: Sequence[Record]) -> list[str]:
    """Return the parts of an op's small calls, folded, since few readers want them."""
    texts = [text for drawn in parts(rows) for text in _drawn(drawn)]
    summary = f"<details>\n<summary>{op}: parts of a call</summary>"
    return [summary, *texts, "</details>"] if texts else []


def _peak(peak: Mapping[str, Any]) -> str:
    if "bytes_per_second" not in peak:
        return "Peak: unknown; the copy and the products measured beside each solution bound it."
    rates = ", ".join(f"{flops / 1e12:g} in {dtype}"
                      for dtype, flops in peak["flops_per_second"].items())  # fmt: skip
    moved = f"{peak['bytes_per_second'] / 1e12:g} TB/s"
    return f"Peak by datasheet: {moved}; TFLOP/s: {rates} ({peak['source']})."


def _drawn(drawn: Table) -> list[str]:
    rules = tuple("---" if name in LEFT else "---:" for name in drawn.header)
    lines = [drawn.header, rules, *drawn.rows]
    return [f"**{drawn.title}**", "\n".join(map(_line, lines)), *drawn.footnotes]


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(map(_escaped, cells)) + " |"


def _escaped(cell: str) -> str:
    """Escape contributors' text, which may neither end the cell nor become HTML."""
    return " ".join(html.escape(cell, quote=False).replace("|", "\\|").split())
