"""Time a solution on one case, in turns with eager and the limits.

The solution's process takes the samples of its own calls (`sandbox/clock.py`), and eager's process
takes the samples of eager and the limits; the harness requests the rounds. No sample is trusted:
the results of timed calls are compared with the oracle, the median with the device's peak, and the
reported time with the harness's stopwatch.
"""

from __future__ import annotations

import functools
import itertools
import math
import time
from collections.abc import Mapping
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from common.arena import elements_of
from common.errors import is_out_of_memory, out_of_memory
from common.grading import oracle
from common.grading.execution import result_slots
from common.grading.memory import needed
from common.grading.problem import OUTPUT, Drawn, Problem
from common.grading.supervisor import Attempts, Cause, Remedy, Supervisor, memory_failure
from common.grading.sweep import Graded
from common.grading.tolerance import check_values
from common.grading.worker import Worker
from common.measure import device, limits
from common.measure.baseline import Baseline, BaselineFailed, Disturbed, eagers_own_faults
from common.measure.cores import kept_as
from common.measure.sampling import FEWEST, ROUND_SAMPLES, sample_in_rounds
from common.measure.stopwatch import Stopwatch
from common.measure.timed_process import (
    Failed,
    KeptResults,
    Samples,
    StagedCalls,
    TimedProcess,
    stage_calls,
)
from common.spec import ByClock, Direction
from common.stats import median
from common.verdicts import Failure
from common.wire import Reply

CLOCK = 3
"""The version of the clock. A board never ranks rows of different versions together."""


@dataclass(frozen=True)
class ClockPlan:
    """How a case is timed, in one direction."""

    inputs: int
    """The number of inputs that a solution's timed calls use in turns: at least one for each call
    of a burst, so that no call can return an earlier call's results."""
    burst: int
    """The most calls per sample of host time: few enough for the launch queue."""
    seconds: Mapping[ByClock, float]
    """The time limits by clock. A clock stops sooner if its medians are known, and later if it has
    too few samples. Host time varies more than GPU time."""
    precision: Mapping[ByClock, float]
    """The maximum width of a known median's 95 % interval, as a share of the median, by clock."""


PRECISION: Mapping[ByClock, float] = {"gpu": 0.01, "host": 0.02}
PLANS: Mapping[ByClock, ClockPlan] = {
    "gpu": ClockPlan(2, 1, {"gpu": 0.4, "host": 0.1}, PRECISION),
    "host": ClockPlan(30, 30, {"gpu": 0.15, "host": 0.6}, PRECISION),
}
"""The plans of cases by the clock that ranks them."""
REPLAYS = 0.15
"""The time limit in seconds for the samples of a CUDA graph, which are not ranked."""
ROUNDS_OF_EAGER = 5
"""The rounds of eager in place of a solution whose time is suspicious."""
RECOVERY = 0.2
"""Seconds after which the GPU has stopped the work of a process that was ended."""


class Suspected(Failed):
    """Apparent tampering that chance or other work on the machine may have caused."""

    def __init__(self, cause: Cause, reason: str) -> None:
        """Store the cause, FORGED or LEFTOVER_WORK, and a reason of one line."""
        super().__init__("TAMPERED", reason)
        self.cause = cause


def time_case(
    graded: Graded,
    baseline: Baseline,
    direction: Direction,
    supervisor: Supervisor,
    time_scale: float = 1.0,
) -> Reply:
    """Time forward, or forward with backward, in the solution's process, and check the times.

    A case is timed again after the causes of `supervisor.RETRIES`.

    Args:
        graded: The case and the solution's worker.
        baseline: Eager's process for the op.
        direction: `forward`, or `backward` for forward with backward.
        supervisor: The workers of the device.
        time_scale: The factor on the plan's seconds; below 1, sustained runs are omitted.

    Returns:
        `gpu` and `host`, the samples by timed callable in microseconds; `sustained`, the
        microseconds per call of a loop, if arithmetic is the limit or host time ranks the case;
        `peak_memory` in bytes; `device_state`; and `notes`, remarks that do not affect the verdict.
        Or a `verdict` with its `reason`; or `unmeasured`, the reason why eager could not be timed.

    Raises:
        torch.OutOfMemoryError: The case does not fit the device, even with eager as the solution.
    """
    problem, worker = graded.problem, graded.worker
    supervisor.make_room(needed(problem.op, problem.case), keep=[worker, baseline.worker])
    baseline.patient, attempts = True, Attempts()

    def eager() -> None:
        with supervisor.alone(baseline.reference):
            baseline.patient = False
            try:
                _time(problem, baseline.reference, baseline, direction, time_scale=0.0)
            finally:
                baseline.reference.close()

    with worker.isolated(), ExitStack() as until_the_end:
        try:
            while True:
                try:
                    return _attempt(problem, worker, baseline, direction, time_scale)
                except (Failure, BaselineFailed, Disturbed, RuntimeError) as error:
                    failure = error
                match attempts.remedy(failure):
                    case Remedy.ALONE:
                        until_the_end.enter_context(supervisor.alone(worker))
                    case Remedy.RESTART_EAGER:
                        baseline.restart()
                    case Remedy.COUNT_SLOW_PROBES:
                        baseline.patient = False
        except (Failure, BaselineFailed, RuntimeError) as error:
            if is_out_of_memory(error):
                return memory_failure(out_of_memory(error), eager).reply
            if isinstance(error, BaselineFailed):
                return {"unmeasured": f"not timed: {error}"}
            if isinstance(error, Failure):
                return error.reply
            raise
        finally:
            worker.release()


# --- one attempt ----------------------------------------------------------------------------------


def _attempt(
    problem: Problem, worker: Worker, baseline: Baseline, direction: Direction, time_scale: float
) -> Reply:
    """Time the case once; if the probe is slow, end the process and probe again.

    Raises:
        Suspected: The probe is quick without the process.
        Disturbed: The probe is still slow.
    """
    try:
        return _time(problem, worker, baseline, direction, time_scale)
    except Disturbed as error:
        disturbed = error.with_traceback(None)  # whose frames hold a case's results
    worker.renew()
    time.sleep(RECOVERY)
    if baseline.slow_probe(disturbed.clock):
        raise disturbed
    quick = f"{baseline.calibrated[disturbed.clock]:.1f} us without"
    reason = f"its work goes on between its calls: {disturbed} with its process running, {quick}"
    raise Suspected(Cause.LEFTOVER_WORK, reason)


def _time(
    problem: Problem, worker: Worker, baseline: Baseline, direction: Direction, time_scale: float
) -> Reply:
    with device.watched(device.reader(problem.device)) as readings:
        staged = _staged(problem, worker, direction)
        timed = TimedProcess(worker, staged, direction)
        baseline.begin(problem, direction)
        by_host = problem.case.ranked_by == "host"
        with baseline.on_one_core(worker) if by_host else nullcontext():
            times = _times(timed, baseline, problem, direction, time_scale)
            sustained = _sustained(timed, baseline, times, time_scale, by_host)
    timed.ready("solution")  # an extra reply would show here
    notes = []
    if wrong := _wrong_replay(problem, worker, staged, timed.kept):
        del times["gpu"]["graph"]
        notes.append(f"its CUDA graph does not follow its inputs: {wrong}")
    return {
        "gpu": times.get("gpu", {}),
        "host": times["host"],
        "sustained": sustained,
        "peak_memory": timed.peak_memory,
        "device_state": {**device.summary(readings), **baseline.slow_probes},
        "notes": notes,
    }


def _staged(problem: Problem, worker: Worker, direction: Direction) -> StagedCalls:
    """Stage the calls, with memory for the results of one call at a time."""
    op, case = problem.op, problem.case
    names = [OUTPUT, *op.differentiable] if direction == "backward" else [OUTPUT]
    slots, plan = result_slots(problem, names), PLANS[case.ranked_by]
    return stage_calls(op, case, problem.device, worker, plan.inputs, slots)


def _times(
    timed: TimedProcess,
    baseline: Baseline,
    problem: Problem,
    direction: Direction,
    time_scale: float,
) -> dict[ByClock, Samples]:
    """Return the samples by clock, and check the ranking clock's by the stopwatch.

    Raises:
        Failed: An input changed, or a time is too short for the device or for the stopwatch.
    """
    case, work = problem.case, problem.op.timed_work(problem.case, direction)
    plan, times, ranking = PLANS[case.ranked_by], dict[ByClock, Samples](), case.ranked_by
    clocks: list[ByClock] = ["host", "gpu"] if problem.device == "cuda" else ["host"]
    clocks.sort(key=lambda clock: clock == ranking)  # the one that ranks the case last
    watch, first = Stopwatch(timed, ranking), FEWEST if timed.slow else ROUND_SAMPLES.start
    for clock in clocks:
        solution = timed.sampler("solution", clock, plan.burst)
        samplers = [watch.followed_by_run(solution) if clock == clocks[-1] else solution]
        part = PARTS[clock].get(direction)
        if part and not timed.slow:
            samplers.append(timed.sampler(part, clock, plan.burst))
        limit_names = ["copy", *["dense"] * bool(work.products)] if clock == "gpu" else []
        samplers.append(baseline.sampler(["eager", *limit_names], clock, plan.burst))
        seconds = time_scale * plan.seconds[clock]
        times[clock] = sample_in_rounds(samplers, seconds, plan.precision[clock], first)
    if gpu := times.get("gpu"):
        if reason := limits.broken(gpu, work, case.dtype):
            raise Failed("IMPOSSIBLE_SPEED", reason)
        if direction == "forward" and not timed.slow and timed.ready("graph"):
            graph, seconds = [timed.sampler("graph", "gpu")], time_scale * REPLAYS
            gpu |= sample_in_rounds(graph, seconds, plan.precision["gpu"], first)
    eager = functools.partial(_eagers_overhead, problem, baseline, direction)
    if reason := watch.forged(median(times[clocks[-1]]["solution"]), eager):
        raise Suspected(Cause.FORGED, reason)
    return times


PARTS: Mapping[ByClock, Mapping[Direction, str]] = {
    "gpu": {"backward": "backward"},
    "host": {"forward": "no_grad"},
}
"""The part of a solution's call that is timed besides the call, by clock and direction."""


def _eagers_overhead(problem: Problem, baseline: Baseline, direction: Direction) -> float:
    """Return the host's microseconds of eager beyond its samples, in the solution's place."""
    reference, burst = baseline.reference, PLANS["host"].burst
    try:
        with eagers_own_faults():
            timed = TimedProcess(reference, _staged(problem, reference, direction), direction)
            with kept_as(baseline.worker.pid, reference.pid):
                watch = Stopwatch(timed, "host")
                take = watch.followed_by_run(timed.sampler("solution", "host", burst))
                rounds = [take(ROUND_SAMPLES.start)["solution"] for _ in range(ROUNDS_OF_EAGER)]
                return watch.overhead(median([*itertools.chain(*rounds)]))
    finally:
        reference.close()


def _sustained(
    timed: TimedProcess,
    baseline: Baseline,
    times: dict[ByClock, Samples],
    time_scale: float,
    by_host: bool,
) -> dict[str, float]:
    """Return the times of calls in a loop, if arithmetic is the limit or host time ranks."""
    gpu, host = (
        {name: median(samples) for name, samples in times.get(clock, {}).items()}
        for clock in ("gpu", "host")
    )
    dense = gpu.get("dense", 0) >= gpu.get("copy", math.inf)
    if time_scale < 1 or "solution" not in gpu or not (dense or by_host):
        return {}
    # a call in a loop takes at least the longer of its GPU time and its host time
    expected = {name: max(gpu[name], host.get(name, 0)) for name in ("solution", "eager")}
    solution_time = expected.pop("solution")
    others = baseline.sustained(expected | ({"dense": gpu["dense"]} if dense else {}))
    return {"solution": timed.sustained("solution", solution_time), **others}


# --- the results of timed calls -------------------------------------------------------------------


def _wrong_replay(
    problem: Problem, worker: Worker, staged: StagedCalls, kept: Mapping[str, list[KeptResults]]
) -> str | None:
    """Check the kept results of timed calls; describe the first wrong result of a graph's replays.

    A wrong replay is no failure of the solution: the graph may read a tensor that the solution
    computed from the inputs at the capture, such as a table, and the inputs have changed since.

    Raises:
        Failed: A timed call is wrong, or the original of an input changed.
    """
    drawn = staged.draw()
    staged.check_originals(drawn)
    worker.release()  # the oracle needs the memory
    wrong = functools.partial(_wrong, problem, drawn)
    for results in itertools.chain(*(kept[kind] for kind in kept.keys() - {"graph"})):
        if reason := wrong(results):
            raise Failed("INCORRECT_NUMERICAL", reason)
    return next(filter(None, map(wrong, kept.get("graph", ()))), None)


def _wrong(problem: Problem, drawn: Drawn, kept: KeptResults) -> str | None:
    """Describe the first wrong value of a timed call, if any."""
    arguments, grad_output = _rotated(kept, *drawn)
    truth = oracle.truth(problem.op, arguments, grad_output, gradients=len(kept.results) > 1)
    for name, result in kept.results.items():
        if truth[name].numel():
            wrong, _ = check_values(
                result, truth[name], problem.budgets[name], problem.slack, problem.device
            )
            if wrong:
                return f"{name} of a timed call at {list(wrong.index)}: {wrong.text}"
    return None


def _rotated(
    kept: KeptResults, arguments: dict[str, Any], grad_output: torch.Tensor
) -> tuple[dict[str, Any], torch.Tensor]:
    """Return the inputs of a timed call, as they were rotated at the time of the call."""
    inputs = {**arguments, "upstream": grad_output}
    for name, unit in kept.changing.items():
        tensor = inputs[name]
        moved = elements_of(tensor).roll(-(kept.shift * unit)).view(tensor.dtype)
        inputs[name] = moved.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
    return inputs, inputs.pop("upstream")
