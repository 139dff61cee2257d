"""Time a solution on one case, in turns with eager and the limits.

The solution's process takes the samples of its own calls (`sandbox/clock.py`), and eager's process
takes the samples of eager and the limits; the harness requests the rounds. No sample is trusted:
the results of timed calls are compared with the oracle, the median with the device's peak, and the
reported time with the harness's stopwatch.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass

import torch

from common.errors import Kind, Note, kind_of, out_of_memory
from common.grading.device import needed
from common.grading.guarded_memory import result_slots
from common.grading.problem import Problem
from common.grading.retries import Cause, remedy_of
from common.grading.supervisor import Supervisor
from common.grading.sweep import Graded
from common.grading.worker import Worker
from common.measure.baseline import Baseline, BaselineFailed, Disturbed
from common.measure.stopwatch import Stopwatch
from common.measure.timed_process import Sampler, Samples, TimedProcess, stage_calls, wrong_replay
from common.peaks import PEAKS
from common.spec import ByClock, Direction, Work
from common.stats import interval, median
from common.verdicts import Failure
from common.wire import Reply

CLOCK = 3
"""The version of the clock. A board never ranks rows of different versions together."""
PRECISION: Mapping[ByClock, float] = {"gpu": 0.01, "host": 0.02}
"""The maximum width of a known median's 95 % interval, as a share of the median, by clock."""


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


PLANS: Mapping[ByClock, ClockPlan] = {
    "gpu": ClockPlan(inputs=2, burst=1, seconds={"gpu": 0.4, "host": 0.1}),
    "host": ClockPlan(inputs=30, burst=30, seconds={"gpu": 0.15, "host": 0.6}),
}
"""The plans of cases by the clock that ranks them."""
REPLAYS = 0.15
"""The time limit in seconds for the samples of a CUDA graph, which are not ranked."""
RECOVERY = 0.2
"""Seconds after which the GPU has stopped the work of a process that was ended."""


class Suspected(Failure):
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

    A case is timed again after each `retries.Cause`. `time_scale` is the factor on the plan's
    seconds; below 1, sustained runs are omitted.

    Returns:
        `gpu` and `host`, the samples by timed callable in microseconds; `sustained`, the
        microseconds per call of a loop, if arithmetic is the limit or host time ranks the case;
        `device_state`; and `notes`.
        Or a `verdict` with its `reason`; or `unmeasured`, the reason why eager could not be timed,
        or that the solution takes more memory while timed than is left.

    Raises:
        torch.OutOfMemoryError: The case does not fit the device: eager lacks memory.
    """
    problem, worker = graded.problem, graded.worker
    supervisor.make_room(needed(problem.op, problem.case), keep=[worker, baseline.worker])
    baseline.patient, failed = True, Counter[Cause]()
    timing = Timing(problem, worker, baseline, direction, time_scale)

    with worker.isolated(), ExitStack() as until_the_end:
        try:
            while True:
                try:
                    return timing.run()
                except (Failure, BaselineFailed, RuntimeError) as error:
                    failure = error
                match remedy_of(failure, failed):
                    case "alone":
                        until_the_end.enter_context(supervisor.alone(worker))
                    case "restart eager":
                        baseline.worker.end_process()
        except (Failure, BaselineFailed, RuntimeError) as error:
            lacks = out_of_memory(error) if kind_of(error) is Kind.OUT_OF_MEMORY else ""
            if lacks and not isinstance(error, Failure):
                raise torch.OutOfMemoryError(str(error)) from None
            if lacks or isinstance(error, BaselineFailed):
                return {"unmeasured": f"not timed: {lacks or error}"}
            if isinstance(error, Failure):
                return error.reply
            raise
        finally:
            worker.release()


@dataclass(frozen=True)
class Timing:
    """One solution, or eager in its place, to be timed on one case and direction."""

    problem: Problem
    worker: Worker
    baseline: Baseline
    direction: Direction
    time_scale: float

    def run(self) -> Reply:
        """Time the case; if the probe is slow, end the solution's process and probe again.

        If the probe is slow then too, because of other work, time the case in spite of it. Raise
        Suspected if it is quick.
        """
        try:
            return self.measure()
        except Disturbed as error:
            disturbed = error.with_traceback(None)  # whose frames hold a case's results
        self.worker.end_process()
        time.sleep(RECOVERY)
        if self.baseline.slow_probe(disturbed.clock):
            self.baseline.patient = False
            return self.measure()
        quick = f"{self.baseline.calibrated[disturbed.clock]:.1f} us without"
        both = f"{disturbed} with its process running, {quick}"
        raise Suspected(Cause.LEFTOVER_WORK, f"its work goes on between its calls: {both}")

    def measure(self) -> Reply:
        """Time the case once; see `time_case` for the reply."""
        op, case, device = self.problem.op, self.problem.case, self.problem.device
        names = [*op.outputs(case), *(op.differentiable if self.direction == "backward" else ())]
        results, inputs = result_slots(self.problem, names), PLANS[case.ranked_by].inputs
        staged = stage_calls(op, case, device, self.worker, inputs, results)
        timed = TimedProcess(self.worker, staged, self.direction)
        self.baseline.begin(self.problem, self.direction)
        by_host = case.ranked_by == "host"
        with self.baseline.on_one_core(self.worker) if by_host else nullcontext():
            times = self.times(timed)
            sustained = self.sustained(timed, times.get("gpu"), by_host)
        if wrong := wrong_replay(self.problem, timed):
            del times["gpu"]["graph"]
        return {
            "gpu": times.get("gpu", {}),
            "host": times["host"],
            "sustained": sustained,
            "device_state": dict(self.baseline.slow_probes),
            "notes": [Note("STALE_GRAPH", wrong)] if wrong else [],
        }

    def times(self, timed: TimedProcess) -> dict[ByClock, Samples]:
        """Return the samples by clock, and check the ranking clock's by the stopwatch."""
        case, direction = self.problem.case, self.direction
        plan, times = PLANS[case.ranked_by], dict[ByClock, Samples]()
        work = self.problem.op.timed_work(case, direction)
        clocks: list[ByClock] = ["host", "gpu"] if self.problem.device == "cuda" else ["host"]
        clocks.sort(key=lambda clock: clock == case.ranked_by)  # the one that ranks comes last
        watch = Stopwatch(timed, case.ranked_by)
        for clock in clocks:
            samplers = [timed.sampler("solution", clock, plan.burst)]
            if clock == clocks[-1]:
                samplers = [watch.followed_by_run(samplers[0])]
            limit_names = ["copy", *["dense"] * bool(work.products)] if clock == "gpu" else []
            samplers.append(self.baseline.sampler(["eager", *limit_names], clock, plan.burst))
            seconds = self.time_scale * plan.seconds[clock]
            times[clock] = sample_in_rounds(samplers, seconds, PRECISION[clock])
        if gpu := times.get("gpu"):
            if reason := below_the_floor(median(gpu["solution"]), work):
                raise Failure("IMPOSSIBLE_SPEED", reason)
            if direction == "forward" and timed.ready("graph"):
                graph, seconds = [timed.sampler("graph", "gpu")], self.time_scale * REPLAYS
                gpu |= sample_in_rounds(graph, seconds, PRECISION["gpu"])
        if reason := watch.forged(median(times[clocks[-1]]["solution"])):
            raise Suspected(Cause.FORGED, reason)
        return times

    def sustained(
        self, timed: TimedProcess, gpu: Samples | None, by_host: bool
    ) -> dict[str, float]:
        """Return the times of calls in a loop, if arithmetic is the limit or host time ranks.

        Where arithmetic is the limit, `one_mask` is the solution's time on one input, as the layers
        of a model have one mask.
        """
        if self.time_scale < 1 or not gpu:
            return {}
        dense = "dense" in gpu and median(gpu["dense"]) >= median(gpu["copy"])
        if not (dense or by_host):
            return {}
        loops = {"solution": timed.sustained("solution")}
        if dense:
            loops["one_mask"] = timed.sustained("solution", same=True)
        work = self.problem.op.timed_work(self.problem.case, self.direction)
        if reason := below_the_floor(min(loops.values()), work):  # it may keep an input's results
            raise Failure("IMPOSSIBLE_SPEED", f"in a loop: {reason}")
        return {**loops, **self.baseline.sustained(["eager", *["dense"] * dense])}


def below_the_floor(microseconds: float, work: Work) -> str | None:
    """Return the reason if a time is impossibly short for the work, otherwise None.

    The bound is lenient: bytes that fit the L2 cache are not counted, and every operation counts at
    the highest rate of the device. For example, 2,050 bytes at 1 GB/s, with a cache of 50 bytes,
    take at least 2 µs. A device without known peaks has no bound.
    """
    gpu = torch.cuda.get_device_properties()
    if not (peak := PEAKS.get(gpu.name)):
        return None
    moved = max(work.bytes - gpu.L2_cache_size, 0)
    arithmetic = work.flops / max(peak.flops_per_second.values())
    least = 1e6 * max(moved / peak.bytes_per_second, arithmetic)
    if microseconds >= least:
        return None
    return f"{microseconds:.3g} us, and {gpu.name} needs {least:.3g} us at its peak"


# --- rounds ---------------------------------------------------------------------------------------

SAMPLES = range(15, 201)
"""The number of samples of a timed callable: at least 15, at most 200."""
ROUND = 10
"""The number of samples of a callable in a round. The intervals are checked only after each round,
because the check takes milliseconds."""
LONGEST = 1.0
"""Seconds after which the sampling stops, even before SAMPLES.start: of long calls one round is
taken, and the interval spans all of its samples."""


def sample_in_rounds(samplers: Sequence[Sampler], seconds: float, precision: float) -> Samples:
    """Return samples of every timed callable, until the medians are known or a limit is reached.

    Every round samples every callable, in a random order, so that slow drifts of the machine affect
    all of them. The limit of seconds holds once every timed callable has SAMPLES.start samples; for
    the precision of a known median see PRECISION.
    """
    samples, start = Samples(), time.monotonic()
    while True:
        for sample in random.sample(samplers, len(samplers)):
            for name, taken in sample(ROUND).items():
                samples.setdefault(name, []).extend(taken)
        now, done = time.monotonic(), min(map(len, samples.values()))
        if now - start > LONGEST or done >= SAMPLES.stop - 1:
            return samples
        medians = ((interval(each), median(each)) for each in samples.values())
        known = (high - low <= precision * middle for (low, high), middle in medians)
        if done >= SAMPLES.start and (now - start > seconds or all(known)):
            return samples
