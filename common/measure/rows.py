"""Grades and times every solution on a tier's cases, and records each row as it comes."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

from common import paths
from common.grading.problem import Problem
from common.grading.sweep import Graded, Sweep, repeats, tier_cases
from common.grading.worker import Worker
from common.measure.machine import (
    device_name,
    digests_of,
    peak,
    peer_versions,
    results_file,
    versions,
)
from common.measure.timing import time_case
from common.records import runs
from common.records.runs import Record, Results, Run, Writer
from common.solutions import Solution
from common.spec import DIRECTIONS, Case, Direction, Op, Tier

PATIENCE: dict[Tier, float] = {"board": 1.0, "plot": 0.3}
"""A tier that ranks nobody has many cases, and its intervals are drawn."""


def bench(
    solutions: list[Solution],
    device: str,
    selection: str,
    absent: dict[str, str],
    seen: Callable[[Record], None] = lambda record: None,
    tier: Tier = "board",
) -> int:
    """Run or go on with a run; `seen` is told of each row, kept or new. Returns how many cases were
    kept from an earlier, interrupted run."""
    path = paths.RESULTS / results_file(device)
    earlier = runs.read(path)
    digests = digests_of(solutions)
    fresh = Run(
        run=uuid.uuid4().hex[:12],
        device=device,
        device_name=device_name(device),
        versions=versions() | peer_versions(solutions),
        absent=absent,
        selection=selection,
        peak=peak(device_name(device)),
    )
    run = _unfinished(earlier, fresh, digests) or fresh
    rows = Counter((row.solution, row.op, row.case) for row in earlier.rows if row.run == run.run)
    done = {case for case, directions in rows.items() if directions >= len(DIRECTIONS)}
    for row in earlier.rows:
        if row.run == run.run and (row.solution, row.op, row.case) in done:
            seen(row)
    writer = Writer(path)
    try:
        if run is fresh:
            writer.begin(run)
        with Sweep(device) as sweep:
            for measured in measure(sweep, solutions, run.run, digests, done, tier):
                writer.rows(measured)
                for row in measured:
                    seen(row)
        writer.end(run.run)
    finally:
        writer.close()
    return len(done)


def measure(
    sweep: Sweep,
    solutions: Sequence[Solution],
    run: str,
    digests: dict[Solution, tuple[str, str]],
    done: Collection[tuple[str, str, str]] = (),
    tier: Tier = "board",
) -> Iterator[list[Record]]:
    """The rows of each solution and case of the tier that is not done yet."""
    for op, cases in tier_cases(solutions, tier, sweep.device):

        def skip(solution: Solution, case: Case, op: Op[Any] = op) -> bool:
            return (solution.name, op.name, case.name) in done

        again = repeats(tier, sweep.device)
        for graded in sweep.grade(op, cases, solutions, skip, again):
            yield [
                _row(sweep, graded, direction, run, digests[graded.solution], tier)
                for direction in DIRECTIONS
            ]


def _row(
    sweep: Sweep,
    graded: Graded,
    direction: Direction,
    run: str,
    digests: tuple[str, str],
    tier: Tier,
) -> Record:
    solution, op, case = graded.solution, graded.problem.op, graded.case
    verdict = graded.verdicts[direction]
    reason, name = verdict.reason, verdict.verdict
    times: dict[str, Any] = {}
    if sweep.device == "cuda" and name == "PASSED":
        times, name, reason = _time(graded.worker, graded.problem, direction, PATIENCE[tier])
    work = op.work(case, direction)
    return Record(
        run=run,
        solution=solution.name,
        peer=solution.peer,
        op=op.name,
        case=case.name,
        track=case.track_of(direction),
        ranked_by=case.ranked_by,
        twin=case.twin,
        direction=direction,
        verdict=name,
        reason=reason,
        error=verdict.error,
        bytes=work.bytes,
        flops=work.flops,
        sources=digests[0],
        harness=digests[1],
        tier=tier,
        **times,
    )


def _time(
    worker: Worker, problem: Problem, direction: Direction, patience: float = 1.0
) -> tuple[dict[str, Any], str, str]:
    """The samples; a solution that fails only when timed loses its verdict."""
    with worker.alone():
        times = time_case(problem, worker, direction, patience)
    if times.get("verdict"):
        return {}, times["verdict"], f"while timed: {times['reason']}"
    return times, "PASSED", ""


def _unfinished(
    earlier: Results, fresh: Run, digests: dict[Solution, tuple[str, str]]
) -> Run | None:
    """The file's last run, if it was interrupted and measured just what is to be measured now."""
    if not earlier.runs or earlier.runs[-1].run in earlier.finished:
        return None
    last = earlier.runs[-1]
    same = (last.versions, last.selection, last.absent, last.device_name) == (
        fresh.versions, fresh.selection, fresh.absent, fresh.device_name,
    )  # fmt: skip
    now = {(s.name, s.op): digest for s, digest in digests.items()}
    rows = [row for row in earlier.rows if row.run == last.run]
    same = same and all(
        now.get((row.solution, row.op)) == (row.sources, row.harness) for row in rows
    )
    return last if same else None
