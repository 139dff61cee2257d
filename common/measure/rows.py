"""The rows of a run: solutions graded and timed case by case."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from common.errors import out_of_memory
from common.grading.graded import Graded, TooLarge
from common.grading.room import Room
from common.grading.sweep import STAND_IN, Sweep, eager_of
from common.grading.tiers import repeats, tier_cases
from common.measure import baseline
from common.measure.baseline import Baseline
from common.measure.timing import CLOCK, time_case
from common.records.fields import SCHEMA, Summary
from common.records.lines import Record
from common.records.writer import Samples
from common.solutions import Solution
from common.spec import DIRECTIONS, ByClock, Case, Direction, Op, Tier
from common.verdicts import Verdict
from common.wire import Reply

PATIENCE: dict[Tier, float] = {"board": 1.0, "plot": 0.3}
"""The share of the clocks' seconds, and of the further answers to grade, that a case gets; the
plots' cases are many, and not ranked."""


@dataclass(frozen=True)
class Measured:
    """A row, its raw samples where it was timed, and the answer that was graded."""

    row: Record
    samples: Samples | None
    graded: Graded

    @property
    def verdict(self) -> Verdict:
        """Return the verdict of the row: the grader's, or the clock's where that one failed."""
        found = self.graded.verdicts[self.row.direction]
        return dataclasses.replace(found, verdict=self.row.verdict, reason=self.row.reason)


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
        asked = [(solution.name, op.name) for solution in solutions if solution.op == op.name]
        if all((*each, case.name) in done for each in asked for case in cases):
            continue
        worker = baseline.eager(sweep, op)
        if calibrated is None:
            calibrated = baseline.calibrate(worker, sweep.device)
        beside = Baseline(worker, calibrated, sweep.worker(eager_of(op), STAND_IN))
        rows = _Rows(beside, sweep.room, run, digests, tier, patience)

        def skip(solution: Solution, case: Case, op: Op[Any] = op, rows: _Rows = rows) -> bool:
            return (solution.name, op.name, case.name) in done or case in rows.too_large

        again = round(patience * repeats(tier, sweep.device))
        for graded in sweep.grade(op, cases, solutions, skip, again):
            yield from rows.of(graded)
        rows.baseline.release()


@dataclass
class _Rows:
    """The rows of one op, case after case, and the cases that do not fit the device."""

    baseline: Baseline
    room: Room
    run: str
    digests: dict[Solution, tuple[str, str]]
    tier: Tier
    patience: float
    too_large: list[Case] = field(default_factory=list)
    _latest: Case | None = None

    def of(self, graded: Graded | TooLarge) -> Iterator[list[Measured] | TooLarge]:
        """Yield the rows of both directions; or once that the case does not fit."""
        if graded.case != self._latest:  # eager's memory of the case before
            self.baseline.release()
        self._latest = graded.case
        if isinstance(graded, Graded):
            try:
                yield [self._row(graded, direction) for direction in DIRECTIONS]
                return
            except torch.OutOfMemoryError as error:
                graded = TooLarge(graded.problem.op, graded.case, out_of_memory(str(error)))
        if graded.case not in self.too_large:
            self.too_large.append(graded.case)
            yield graded

    def _row(self, graded: Graded, direction: Direction) -> Measured:
        verdict = graded.verdicts[direction]
        if graded.problem.device != "cuda" or verdict.verdict != "PASSED":
            return self._measured(graded, direction, verdict.verdict, verdict.reason, {})
        times = time_graded(graded, self.baseline, direction, self.room, self.patience)
        if times.get("verdict"):
            reason = f"while timed: {times['reason']}"
            return self._measured(graded, direction, times["verdict"], reason, {})
        return self._measured(graded, direction, "PASSED", times.get("unmeasured", ""), times)

    def _measured(
        self, graded: Graded, direction: Direction, name: str, reason: str, times: dict[str, Any]
    ) -> Measured:
        solution, op, case = graded.solution, graded.problem.op, graded.case
        error, digests = graded.verdicts[direction].error, self.digests[solution]
        gpu, host = times.get("gpu", {}), times.get("host", {})
        work = op.work(case, direction)
        row = Record(
            schema=SCHEMA,
            run=self.run,
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
            error=None if error is None else round(error, 5),
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
            tier=self.tier,
        )
        return Measured(row, Samples.of(row, gpu, host) if gpu or host else None, graded)


def _summaries(times: dict[str, list[float]]) -> dict[str, Summary]:
    return {name: Summary.of(samples) for name, samples in times.items()}


def time_graded(
    graded: Graded, beside: Baseline, direction: Direction, room: Room, patience: float = 1.0
) -> Reply:
    """Return the times, or the verdict and its reason; see `timing.time_case`."""
    with graded.worker.alone():
        return time_case(graded.problem, graded.worker, beside, direction, room, patience)
