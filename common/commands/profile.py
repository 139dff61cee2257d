"""`study profile`: report the bottleneck of each board case: memory, arithmetic or launching.

A call that takes the host longer than the GPU is bound by launching. Any other call is bound by the
slower of its two limits, which the same run measures.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from common import ops
from common.commands import options as shared
from common.commands.bench import measured
from common.commands.result import output
from common.solutions import Solution

if TYPE_CHECKING:
    from common.records.lines import Record
    from common.records.runs import Results

BINDS = {"copy": "memory", "dense": "arithmetic"}
"""The bottleneck of a call, by its slower limit."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the folder's handle."""
    shared.add(parser, *shared.RUNNING, "--json", "handle", "of")


def run(options: argparse.Namespace) -> int:
    """Report the bottleneck of each board case of a folder."""
    shared.folder_of(options)
    chosen = shared.chosen(options)
    shared.gpu(options)
    with output(options.json) as written:
        results = measured(options, chosen)
        show(results, chosen)
        written.extend(results.rows)
    return 0


# --- lines ----------------------------------------------------------------------------------------

HEADER = (
    "case", "direction", "MB", "GFLOP", "FLOP/byte", "GPU µs", "host µs", "limit µs", "reached",
    "sustained", "binds",
)  # fmt: skip
WIDTHS = (-44, -13, 9, 9, 9, 9, 9, 15, 8, 10, 11)
"""The widths of the columns; a negative width aligns to the left."""
LEGEND = (
    "host µs: one call on an idle GPU, or for small cases the mean of a burst; launch binds if that"
    " is longer than GPU µs\n"
    "reached, sustained: the share of the limit by single calls on an idle GPU, and by calls that"
    " follow each other for half a second, where arithmetic binds. A GPU that runs"
    " on and on lowers its clock to stay within its power, so that a kernel that draws less power"
    " than the library's gains on it"
)
COUNTERS = "a kernel's counters: ncu -k KERNEL python -m common.sandbox.standalone {path} {op} CASE"
"""The command that runs Nsight Compute."""


def times(row: Record) -> list[str]:
    """Return the cells of a row's times."""
    from common.board.ranking import limit, sustained_share

    slower, name = limit(row)
    gpu, host = (times["solution"].value for times in (row.gpu, row.host))
    shares = (slower / gpu, sustained_share(row))
    return [
        f"{gpu:.1f}",
        f"{host:.1f}",
        f"{name} {slower:.1f}",
        *("" if share is None else f"{share:.0%}" for share in shares),
        "launch" if host > gpu else BINDS[name],
    ]


def _padded(cells: Sequence[str]) -> str:
    padded = (
        cell.ljust(-width) if width < 0 else cell.rjust(width)
        for cell, width in zip(cells, WIDTHS, strict=False)
    )
    return " ".join(padded).rstrip()


# --- on a GPU -------------------------------------------------------------------------------------


def show(results: Results, chosen: Iterable[Solution]) -> None:
    """Print a line for each case and direction of each solution."""
    from common.board.ranking import DIRECTION

    name, valid = results.runs[-1].device_name, ops.valid(solution.op for solution in chosen)
    by_name = {op.name: op for op in valid}
    for solution in (each for each in chosen if each.op in by_name):
        op = by_name[solution.op]
        cases = {case.name: case for case in op.cases("board")}
        print(f"\n{solution.name} on {name}\n{LEGEND}\n{_padded(HEADER)}")
        for row in (row for row in results.rows if row.solution == solution.name):
            cells = [row.case, DIRECTION[row.direction]]
            if row.gpu:
                work = op.timed_work(cases[row.case], row.direction)
                intensity = work.flops / work.bytes if work.bytes else 0.0
                cells += f"{work.bytes / 1e6:.4g}", f"{work.flops / 1e9:.3g}", f"{intensity:.3g}"
                cells += times(row)
            else:
                cells.append(f"{row.verdict}: {row.reason}" if row.reason else row.verdict)
            print(_padded(cells))
        print(COUNTERS.format(path=solution.path, op=solution.op))
