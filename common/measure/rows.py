"""The rows of a run: solutions graded and timed case by case."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from common.errors import out_of_memory
from common.grading.device import repeats
from common.grading.retries import Ends
from common.grading.sweep import Graded, Sweep, TooLarge, eager_of
from common.measure import baseline
from common.measure.baseline import Baseline
from common.measure.timing import CLOCK, time_case
from common.records.lines import SCHEMA, Estimate, Record
from common.records.runs import Samples
from common.solutions import Solution
from common.spec import DIRECTIONS, ByClock, Case, Direction, Op, Tier
from common.verdicts import Failure, Verdict
from common.wire import Reply

TIME_SCALE = 0.3
"""The factor on the clocks' seconds and on the number of repeated grading calls for rows that are
not ranked: those of the plots, which have many cases, and those of `check`."""


@dataclass(frozen=True)
class Measured:
    """A row, its raw samples, and the result of grading."""

    row: Record
    samples: Samples
    graded: Graded
    verdict: Verdict
    """The timing's verdict if it failed, otherwise the grader's."""


class Measurement:
    """Grades and times solutions on one device, for `check`, `bench` and `profile`."""

    def __init__(
        self,
        sweep: Sweep,
        digests: Mapping[Solution, tuple[str, str]],
        tier: Tier = "board",
        brief: bool = False,
        through: Callable[[Iterable[Graded | TooLarge]], Iterable[Graded | TooLarge]] = iter,
    ) -> None:
        """Prepare the measurement without starting it.

        Args:
            sweep: The device's workers.
            digests: The solution's digest and the harness's, by solution; the rows store both.
            tier: The tier of the cases.
            brief: Whether the rows of the board are not ranked either; see TIME_SCALE.
            through: Transforms the results of grading before they are timed.
        """
        self._sweep, self._digests, self._tier = sweep, digests, tier
        self._time_scale = TIME_SCALE if brief or tier == "plot" else 1.0
        self._through = through
        self._calibrated: dict[ByClock, float] | None = None
        self._baselines: dict[str, Baseline] = {}
        self._too_large: set[tuple[str, str]] = set()
        self._ends = Ends()

    def measure(
        self,
        solutions: Sequence[Solution],
        cases: Iterable[tuple[Op[Any], Sequence[Case]]],
        skip: Callable[[Solution, Case], bool] = lambda solution, case: False,
    ) -> Iterator[list[Measured] | TooLarge]:
        """Yield the rows of each solution and case; yield a case that does not fit only once.

        `skip` returns whether to omit a case for a solution. The workers, the calibration and the
        baselines are reused by the next call.
        """
        repetitions = round(self._time_scale * repeats(self._tier, self._sweep.device))
        for op, op_cases in cases:
            op_baseline, latest = self._baseline(op), None

            def leave_out(solution: Solution, case: Case, op: Op[Any] = op) -> bool:
                return skip(solution, case) or (op.name, case.name) in self._too_large

            results = self._sweep.grade(op, op_cases, solutions, leave_out, repetitions)
            for graded in self._through(results):
                if graded.case != latest:  # frees eager's memory of the previous case
                    op_baseline.release()
                latest = graded.case
                rows = self._rows(graded, op_baseline)
                if isinstance(rows, list):
                    yield rows
                elif (op.name, latest.name) not in self._too_large:
                    self._too_large.add((op.name, latest.name))
                    yield rows
            op_baseline.release()

    def _baseline(self, op: Op[Any]) -> Baseline:
        """Return eager's process for an op; the first call, before any solution, calibrates."""
        if op.name not in self._baselines:
            sweep, workers = self._sweep, self._sweep.supervisor
            worker = workers.baseline(eager_of(op))
            if self._calibrated is None:
                self._calibrated = baseline.calibrate(worker, sweep.device)
            self._baselines[op.name] = Baseline(worker, self._calibrated)
        return self._baselines[op.name]

    def _rows(self, graded: Graded | TooLarge, op_baseline: Baseline) -> list[Measured] | TooLarge:
        """Return the rows of both directions, or TooLarge if the case does not fit."""
        if isinstance(graded, TooLarge):
            return graded
        try:
            return [self._row(graded, direction, op_baseline) for direction in DIRECTIONS]
        except torch.OutOfMemoryError as error:
            return TooLarge(graded.problem.op, graded.case, out_of_memory(error))

    def _row(self, graded: Graded, direction: Direction, op_baseline: Baseline) -> Measured:
        verdict, times = graded.verdicts[direction], Reply()
        if graded.problem.device == "cuda" and verdict.verdict == "PASSED":
            times = self._times(graded, direction, op_baseline)
            verdict = replace(verdict, reason=times.get("unmeasured", ""))
            if times.get("verdict"):
                failure = Failure.from_reply(times)
                failure.reason = f"while timed: {failure.reason}"
                verdict = replace(verdict, **failure.fields)
        samples: Samples = {clock: times[clock] for clock in ("gpu", "host") if times.get(clock)}
        estimates = {clock: {name: Estimate.of(each) for name, each in taken.items()}
                     for clock, taken in samples.items()}  # fmt: skip
        row = record_of(
            graded.problem.op,
            graded.case,
            direction,
            graded.solution,
            self._tier,
            self._digests[graded.solution],
            verdict=verdict.verdict,
            reason=verdict.reason,
            error=None if verdict.error is None else round(verdict.error, 5),
            sustained=times.get("sustained", {}),
            device_state=times.get("device_state", {}),
            notes=(*(note for note in verdict.notes if note.found), *times.get("notes", ())),
            **estimates,
        )
        return Measured(row, samples, graded, verdict)

    def _times(self, graded: Graded, direction: Direction, op_baseline: Baseline) -> Reply:
        """Time a solution, unless its process ended in each of its latest timings."""
        if refusal := self._ends.refusal(graded.solution):
            return refusal.reply
        ends = graded.worker.ends
        times = time_case(graded, op_baseline, direction, self._sweep.supervisor, self._time_scale)
        ended = times.get("verdict") and graded.worker.ends > ends
        self._ends.note(graded.solution, Failure.from_reply(times) if ended else None)
        return times


def record_of(
    op: Op[Any],
    case: Case,
    direction: Direction,
    solution: Solution,
    tier: Tier,
    digests: tuple[str, str],
    **found: Any,
) -> Record:
    """Return a row with the fields that were `found`, such as the verdict and the times.

    A row that travels to the driver has no run's id: the driver adds it.
    """
    work, (sources, harness) = op.timed_work(case, direction), digests
    return Record(
        schema=SCHEMA, run="", solution=solution.name, peer=solution.peer, op=op.name,
        case=case.name, params=case.params, track=op.track_of(case),
        ranked_by=case.ranked_by, twin=case.twin, direction=direction, bytes=work.bytes,
        flops=work.flops, sources=sources, harness=harness, clock=CLOCK, tier=tier, **found,
    )  # fmt: skip
