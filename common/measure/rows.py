"""The rows of a run: solutions graded and timed case by case."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
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
from common.records.lines import SCHEMA, Record, Summary
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
    measurement = Measurement(sweep, run, digests, tier, patience)
    for op, cases in tier_cases(solutions, tier, sweep.device, budget=sweep.room.memory.budget):

        def skip(solution: Solution, case: Case, op: Op[Any] = op) -> bool:
            return (solution.name, op.name, case.name) in done

        asked = [solution for solution in solutions if solution.op == op.name]
        if not all(skip(each, case) for each in asked for case in cases):
            yield from measurement.of(op, cases, solutions, skip)


class Measurement:
    """The rows of one device, op after op; an op may come in parts."""

    def __init__(
        self,
        sweep: Sweep,
        run: str,
        digests: Mapping[Solution, tuple[str, str]],
        tier: Tier = "board",
        patience: float | None = None,
    ) -> None:
        """Measure nothing yet; see `measure`."""
        self._sweep, self._run, self._digests, self._tier = sweep, run, digests, tier
        self._patience = PATIENCE[tier] if patience is None else patience
        self._calibrated: dict[ByClock, float] | None = None
        self._rows: dict[str, _Rows] = {}

    def of(
        self,
        op: Op[Any],
        cases: Sequence[Case],
        solutions: Sequence[Solution],
        skip: Callable[[Solution, Case], bool] = lambda solution, case: False,
    ) -> Iterator[list[Measured] | TooLarge]:
        """Yield both directions of each solution and case of an op, or a case that does not fit."""
        rows = self._rows_of(op)

        def leave_out(solution: Solution, case: Case) -> bool:
            return skip(solution, case) or case in rows.too_large

        again = round(self._patience * repeats(self._tier, self._sweep.device))
        for graded in self._sweep.grade(op, cases, solutions, leave_out, again):
            yield from rows.of(graded)
        rows.baseline.release()

    def _rows_of(self, op: Op[Any]) -> _Rows:
        """Return the rows of an op; the first call calibrates, before any solution has run."""
        if op.name not in self._rows:
            sweep, worker = self._sweep, baseline.eager(self._sweep, op)
            if self._calibrated is None:
                self._calibrated = baseline.calibrate(worker, sweep.device)
            beside = Baseline(worker, self._calibrated, sweep.worker(eager_of(op), STAND_IN))
            self._rows[op.name] = _Rows(
                beside, sweep.room, self._run, self._digests, self._tier, self._patience
            )
        return self._rows[op.name]


@dataclass
class _Rows:
    """The rows of one op, case after case, and the cases that do not fit the device."""

    baseline: Baseline
    room: Room
    run: str
    digests: Mapping[Solution, tuple[str, str]]
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
        solution, error = graded.solution, graded.verdicts[direction].error
        row = record_of(
            graded.problem.op,
            graded.case,
            direction,
            solution,
            run=self.run,
            tier=self.tier,
            digests=self.digests[solution],
            verdict=name,
            reason=reason,
            error=None if error is None else round(error, 5),
            times=times,
        )
        gpu, host = times.get("gpu", {}), times.get("host", {})
        return Measured(row, Samples.of(row, gpu, host) if gpu or host else None, graded)


def record_of(
    op: Op[Any],
    case: Case,
    direction: Direction,
    solution: Solution,
    *,
    run: str,
    tier: Tier,
    digests: tuple[str, str],
    verdict: str,
    reason: str = "",
    error: float | None = None,
    times: Mapping[str, Any] | None = None,
) -> Record:
    """Return a row: the verdict, and the times where there are any; see `timing.time_case`."""
    times, work = times or {}, op.work(case, direction)
    return Record(
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
        verdict=verdict,
        reason=reason,
        error=error,
        bytes=work.bytes,
        flops=work.flops,
        sources=digests[0],
        harness=digests[1],
        gpu=_summaries(times.get("gpu", {})),
        host=_summaries(times.get("host", {})),
        sustained=times.get("sustained", {}),
        clock=CLOCK,
        device_state=times.get("device_state", {}),
        peak_memory=times.get("peak_memory"),
        notes=tuple(times.get("notes", ())),
        tier=tier,
    )


def _summaries(times: dict[str, list[float]]) -> dict[str, Summary]:
    return {name: Summary.of(samples) for name, samples in times.items()}


def time_graded(
    graded: Graded, beside: Baseline, direction: Direction, room: Room, patience: float = 1.0
) -> Reply:
    """Return the times, or the verdict and its reason; see `timing.time_case`."""
    with graded.worker.alone():
        return time_case(graded.problem, graded.worker, beside, direction, room, patience)
