"""A run of `bench`, new or continued, and its record on disk."""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import torch

from common import ops, paths
from common.grading.compiling import Compiler
from common.grading.graded import TooLarge
from common.grading.memory import GIB, Memory
from common.grading.sweep import Sweep, eager_of
from common.measure.counts import counts
from common.measure.machine import (
    device_name,
    digests_of,
    peak,
    peer_versions,
    results_folder,
    versions,
)
from common.measure.rows import measure
from common.records import lines, runs, writer
from common.records.fields import SCHEMA, Selection
from common.records.lines import Counted, LeftOut, Record, Run
from common.records.runs import Results
from common.records.writer import RunWriter
from common.solutions import Solution
from common.spec import DIRECTIONS

Done = set[tuple[str, str, str]]
"""The solution, op and case of those that are complete."""


@dataclass(frozen=True)
class Kept:
    """A row that an interrupted run had measured."""

    row: Record


@dataclass(frozen=True)
class Taken:
    """A row that was measured and recorded now."""

    row: Record


@dataclass(frozen=True)
class Recorded:
    """The end of a run: its file, and how many cases it kept from an earlier one.

    With `resumed` the earlier one is the same run before it was interrupted.
    """

    path: Path
    kept: int
    resumed: bool = True


def bench(
    solutions: Sequence[Solution],
    device: str,
    selection: Selection,
    absent: dict[str, str],
    memory: int | None = None,
) -> Generator[Kept | Taken | LeftOut | Counted | Recorded]:
    """Yield each row of a run and what was counted, then its end; close the iterator to interrupt.

    The device's last run is continued if it was interrupted and measured the same. Without a GPU
    nothing is timed, and what earlier runs found in order of the same sources is kept.

    Args:
        solutions: The solutions.
        device: `cpu` or `cuda`.
        selection: The options that chose the solutions.
        absent: The peers that are not among them, with the reason.
        memory: The bytes that the run may take of the GPU, by default all that is free.

    Raises:
        UserError: Another run is writing, or a solution changed the record.
    """
    folder = paths.RESULTS / results_folder(device)
    runs.name_old_files(paths.RESULTS)
    with writer.locked(folder):
        budget = Memory.of(device, memory)
        fresh = _fresh(solutions, device, selection, absent, budget)
        digests = digests_of(solutions)
        last = runs.files(folder)[-1:]
        earlier = runs.read(folder, last)
        found = _unfinished(earlier, fresh, digests)
        done = _done(earlier) if found else set()
        for row in earlier.rows if found else ():
            if (row.solution, row.op, row.case) in done:
                yield Kept(row)
        path = last[0] if found else writer.new_file(folder, fresh.run)
        left = {(line.op, line.case) for line in earlier.left_out_lines} if found else set()
        skipped = done | {(s.name, *case) for s in solutions for case in left}
        kept = [] if found or device == "cuda" else _unchanged(runs.read(folder), fresh, digests)
        done |= (same := {(row.solution, row.op, row.case) for row in kept})
        recorded = _record(path, found, fresh, solutions, digests, skipped | same, budget, kept)
        with contextlib.closing(recorded):  # now, so that an error in closing is raised
            for line in recorded:
                yield Taken(line) if isinstance(line, Record) else line
    yield Recorded(path, len(done), resumed=found is not None)


def _fresh(
    solutions: Sequence[Solution],
    device: str,
    selection: Selection,
    absent: dict[str, str],
    budget: Memory,
) -> Run:
    name = device_name(device)
    return Run(
        schema=SCHEMA,
        run=uuid.uuid4().hex[:12],
        device="cuda" if device == "cuda" else "cpu",
        device_name=name,
        versions=versions() | peer_versions(solutions),
        absent=absent,
        selection=selection,
        peak=peak(name),
        memory_gib=round(budget.budget / GIB) if device == "cuda" else 0,
    )


def _record(
    path: Path,
    found: Run | None,
    fresh: Run,
    solutions: Sequence[Solution],
    digests: dict[Solution, tuple[str, str]],
    skipped: Done,
    budget: Memory,
    kept: Sequence[Record],
) -> Generator[Record | Kept | LeftOut | Counted]:
    """Measure and write what is not skipped, row by row; without a GPU count the work, too."""
    run, begun = found or fresh, time.monotonic()
    written = RunWriter(path)
    try:
        if found is None:
            written.begin(run)
        for row in kept:
            written.row(msgspec.structs.replace(row, run=run.run))
            yield Kept(row)
        with (
            Compiler(run.device) as compiler,
            Sweep(run.device, memory=budget, grade=compiler.grade) as sweep,
        ):
            for case in measure(sweep, solutions, run.run, digests, skipped, run.selection.tier):
                if isinstance(case, TooLarge):
                    line = _left_out(run, case)
                    written.left_out(line)
                    yield line
                    continue
                for each in case:
                    written.row(each.row, each.samples)
                yield from (each.row for each in case)
        if run.device == "cpu" and run.selection.tier == "board":
            everyone = _with_eager(solutions)
            for counted in counts(everyone, run.run, digests_of(everyone)):
                written.counted(counted)
                yield counted
        memory = _taken(budget) if run.device == "cuda" else None
        written.end(run.run, memory, time.monotonic() - begun)
    finally:  # the solutions have ended
        written.close()


def _with_eager(solutions: Sequence[Solution]) -> list[Solution]:
    """Return the solutions, and eager's of each op that they are for: the unit of every speed."""
    eager = [eager_of(ops.load(op)) for op in sorted({each.op for each in solutions})]
    return list(dict.fromkeys([*solutions, *eager]))


def _left_out(run: Run, case: TooLarge) -> LeftOut:
    return LeftOut(
        schema=SCHEMA,
        run=run.run,
        op=case.op.name,
        case=case.case.name,
        tier=run.selection.tier,
        reason=case.reason,
    )


def _taken(budget: Memory) -> lines.Memory:
    harness = torch.cuda.max_memory_reserved()
    return {"budget": budget.budget, "harness": harness, "device": budget.peak}


def _done(earlier: Results) -> Done:
    """Return the cases with a row for each direction: a kill may have cut off the last row."""
    rows = {(row.solution, row.op, row.case, row.direction) for row in earlier.rows}
    cases = {row[:3] for row in rows}
    return {case for case in cases if all((*case, each) in rows for each in DIRECTIONS)}


def _unchanged(
    earlier: Results, fresh: Run, digests: dict[Solution, tuple[str, str]]
) -> list[Record]:
    """Return the rows that are in order of finished runs with the same sources and versions."""
    versions = {run.run: run.versions for run in earlier.runs if run.run in earlier.finished}
    now = {(s.name, s.op): digest for s, digest in digests.items()}
    same = [
        row
        for row in earlier.latest(fresh.selection.tier)
        if versions.get(row.run) == fresh.versions
        and row.fine
        and now.get((row.solution, row.op)) == (row.sources, row.harness)
    ]
    whole = _done(replace(earlier, rows=same))
    return [row for row in same if (row.solution, row.op, row.case) in whole]


def _unfinished(
    earlier: Results, fresh: Run, digests: dict[Solution, tuple[str, str]]
) -> Run | None:
    """Return the last run, if it was interrupted and measured just what is to be measured now."""
    if not earlier.runs or earlier.runs[-1].run in earlier.finished:
        return None
    last = earlier.runs[-1]
    if earlier.left_out_lines and last.memory_gib != fresh.memory_gib:
        return None  # they may fit now
    same = (last.versions, last.selection, last.absent, last.device_name) == (
        fresh.versions, fresh.selection, fresh.absent, fresh.device_name,
    )  # fmt: skip
    now = {(s.name, s.op): digest for s, digest in digests.items()}
    rows = [row for row in earlier.rows if row.run == last.run]
    same = same and all(
        now.get((row.solution, row.op)) == (row.sources, row.harness) for row in rows
    )
    return last if same else None
