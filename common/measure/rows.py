"""The rows of a run: solutions graded and timed case by case."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from common.grading.sweep import Graded, Sweep, TooLarge
from common.grading.tiers import repeats, tier_cases
from common.measure import baseline
from common.measure.baseline import Baseline
from common.measure.timing import CLOCK, time_case
from common.records.fields import SCHEMA, Summary
from common.records.lines import Record
from common.records.writer import Samples
from common.solutions import Solution
from common.spec import DIRECTIONS, ByClock, Case, Direction, Op, Tier

PATIENCE: dict[Tier, float] = {"board": 1.0, "plot": 0.3}
"""The share of the clocks' seconds, and of the further answers to grade, that a case gets; the
plots' cases are many, and not ranked."""


@dataclass(frozen=True)
class Measured:
    """A row, and its raw samples where it was timed."""

    row: Record
    samples: Samples | None


def measure(
    sweep: Sweep,
    solutions: Sequence[Solution],
    run: str,
    digests: dict[Solution, tuple[str, str]],
    done: Collection[tuple[str, str, str]] = (),
    tier: Tier = "board",
    patience: float | None = None,
) -> Iterator[list[Measured] | TooLarge]:
    """Yield both directions of each solution and case of the tier, or a case that does not fit.

    `done` holds the solution, op and case of what is left out; `patience` is PATIENCE by default.
    """
    patience = PATIENCE[tier] if patience is None else patience
    calibrated: dict[ByClock, float] | None = None
    for op, cases in tier_cases(solutions, tier, sweep.device, budget=sweep.room.memory.budget):
        worker = baseline.eager(sweep, op)
        if calibrated is None:
            calibrated = baseline.calibrate(worker, sweep.device)
        beside = Baseline(worker, calibrated)

        def skip(solution: Solution, case: Case, op: Op[Any] = op) -> bool:
            return (solution.name, op.name, case.name) in done

        again, latest = round(patience * repeats(tier, sweep.device)), None
        for graded in sweep.grade(op, cases, solutions, skip, again):
            if graded.case != latest:  # eager's memory of the case before
                beside.release()
            latest = graded.case
            if isinstance(graded, TooLarge):
                yield graded
                continue
            yield [
                _measured(beside, graded, direction, run, digests[graded.solution], tier, patience)
                for direction in DIRECTIONS
            ]
        beside.release()


def _measured(
    beside: Baseline,
    graded: Graded,
    direction: Direction,
    run: str,
    digests: tuple[str, str],
    tier: Tier,
    patience: float,
) -> Measured:
    solution, op, case = graded.solution, graded.problem.op, graded.case
    verdict = graded.verdicts[direction]
    reason, name = verdict.reason, verdict.verdict
    times: dict[str, Any] = {}
    if graded.problem.device == "cuda" and name == "PASSED":
        times, name, reason = time_graded(graded, beside, direction, patience)
    gpu, host = times.get("gpu", {}), times.get("host", {})
    work = op.work(case, direction)
    row = Record(
        schema=SCHEMA,
        run=run,
        solution=solution.name,
        peer=solution.peer,
        op=op.name,
        case=case.name,
        params=case.params,
        track=case.track_of(direction),
        ranked_by=case.ranked_by,
        twin=case.twin,
        direction=direction,
        verdict=name,
        reason=reason,
        error=None if verdict.error is None else round(verdict.error, 5),
        bytes=work.bytes,
        flops=work.flops,
        sources=digests[0],
        harness=digests[1],
        gpu=_summaries(gpu),
        host=_summaries(host),
        sustained=times.get("sustained", {}),
        clock=CLOCK,
        device_state=times.get("device_state", {}),
        peak_memory=times.get("peak_memory"),
        tier=tier,
    )
    return Measured(row, Samples.of(row, gpu, host) if gpu or host else None)


def _summaries(times: dict[str, list[float]]) -> dict[str, Summary]:
    return {name: Summary.of(samples) for name, samples in times.items()}


def time_graded(
    graded: Graded, beside: Baseline, direction: Direction, patience: float = 1.0
) -> tuple[dict[str, Any], str, str]:
    """Return the times, the verdict and its reason; a solution can fail only once it is timed."""
    with graded.worker.alone():
        times = time_case(graded.problem, graded.worker, beside, direction, patience)
    if times.get("verdict"):
        return {}, times["verdict"], f"while timed: {times['reason']}"
    return times, "PASSED", times.pop("unmeasured", "")
