"""Time a solution on one case, in turns with eager and the limits.

The solution's process takes the samples of its own calls (`sandbox/clock.py`), and eager's process
takes the samples of eager and the limits; the harness requests the rounds. No sample is trusted:
the results of timed calls are compared with the oracle, the median with the device's peak, and the
reported time with the harness's stopwatch. RETRIES lists the causes after which a case is timed
again.
"""

from __future__ import annotations

import functools
import itertools
import math
import sys
import time
from collections import Counter
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, TypeVar

import torch

from common.arena import shifted
from common.errors import Kind, is_out_of_memory, kind_of, out_of_memory
from common.grading import oracle
from common.grading.execution import result_slots
from common.grading.memory import needed
from common.grading.problem import OUTPUT, Problem
from common.grading.supervisor import Supervisor
from common.grading.sweep import Graded
from common.grading.tolerance import check_values
from common.grading.worker import Worker
from common.measure import device, limits
from common.measure.baseline import Baseline, BaselineFailed, Disturbed, eagers_own_faults
from common.measure.cores import kept_as
from common.measure.sampling import FEWEST, ROUND_SAMPLES, Samples, sample_in_rounds
from common.measure.stopwatch import Stopwatch
from common.measure.timed_process import (
    Failed,
    KeptResults,
    Sampler,
    StagedCalls,
    TimedProcess,
    stage_calls,
)
from common.ops._draw import draw
from common.spec import ByClock, Direction
from common.stats import median
from common.verdicts import ISOLATED_TOO
from common.wire import Reply

Fault = TypeVar("Fault", bound=Exception)
CLOCK = 3
"""The version of the clock. A board never ranks rows of different versions together."""
ROTATION = {"gpu": 2, "host": 30}
"""The number of inputs that a solution's timed calls use in turns, by the case's `ranked_by`: at
least one for each call of a burst, so that no call can return an earlier call's results."""
BURST = {"gpu": 1, "host": 30}
"""Calls per sample of host time, by the case's `ranked_by`: few enough for the launch queue."""
SECONDS = {"gpu": {"gpu": 0.4, "host": 0.1}, "host": {"gpu": 0.15, "host": 0.6}}
"""The time limits in seconds by the case's `ranked_by`, then by clock, for one direction.

A clock stops sooner if its medians are known, and later if it has too few samples. Host time varies
more than GPU time.
"""
REPLAYS = 0.15
"""The time limit in seconds for the samples of a CUDA graph, which are not ranked."""
PRECISION = {"gpu": 0.01, "host": 0.02}
"""The maximum width of a known median's 95 % interval, as a share of the median, by clock."""
ROUNDS_OF_EAGER = 5
"""The rounds of eager in place of a solution whose time is suspicious."""
RECOVERY = 0.2
"""Seconds after which the GPU has stopped the work of a process that was ended."""


def time_case(
    graded: Graded,
    baseline: Baseline,
    direction: Direction,
    supervisor: Supervisor,
    time_scale: float = 1.0,
) -> Reply:
    """Time forward, or forward with backward, in the solution's process, and check the times.

    Args:
        graded: The case and the solution's worker.
        baseline: Eager's process for the op.
        direction: `forward`, or `backward` for forward with backward.
        supervisor: The workers of the device.
        time_scale: The factor on SECONDS; below 1, sustained runs are omitted.

    Returns:
        `gpu` and `host`, the samples by timed callable in microseconds; `sustained`, the
        microseconds per call of a loop, if arithmetic is the limit or host time ranks the case;
        `peak_memory` in bytes; `device_state`; and `notes`, remarks that do not affect the verdict.
        Or a `verdict` with its `reason`; or `unmeasured`, the reason why eager could not be timed.

    Raises:
        torch.OutOfMemoryError: The case does not fit the device, even with eager as the solution.
    """
    with graded.worker.isolated():
        try:
            return Attempts(graded, baseline, direction, supervisor, time_scale).run()
        except Failed as failed:
            return failed.reply
        except BaselineFailed as failed:
            return {"unmeasured": f"not timed: {failed}"}
        finally:
            graded.worker.release()


# --- further attempts -----------------------------------------------------------------------------


class RetryCause(Enum):
    """The causes of a failed attempt that may be outside the solution."""

    OUT_OF_MEMORY = "the GPU's memory ran out"
    KILLED = "a SIGKILL of unknown origin ended the solution's process"
    EAGER = "eager's process failed or sent an invalid reply"
    FORGED = "the reported times are shorter than the stopwatch allows"
    LEFTOVER_WORK = "the probe is slow while the solution's process exists, and quick without it"
    OTHER_LOAD = "the probe is slow even without the solution's process"


class Suspected(Failed):
    """Apparent tampering that chance or other work on the machine may have caused."""

    def __init__(self, cause: RetryCause, reason: str) -> None:
        """Store the cause, FORGED or LEFTOVER_WORK, and a reason of one line."""
        super().__init__("TAMPERED", reason)
        self.cause = cause


@dataclass
class Attempts:
    """The attempts to time one case and direction; see `time_case`."""

    graded: Graded
    baseline: Baseline
    direction: Direction
    supervisor: Supervisor
    time_scale: float
    low_memory: bool = False
    """Whether the processes hold only their inputs between their rounds."""
    cleanup: ExitStack = field(default_factory=ExitStack)

    def run(self) -> Reply:
        """Return the times; after a cause in RETRIES, try again; raise any other failure."""
        self.baseline.patient, causes = True, Counter[RetryCause]()
        size = needed(self.graded.problem.op, self.graded.case)
        self.supervisor.make_room(size, keep=[self.graded.worker, self.baseline.worker])
        with self.cleanup:
            while True:
                try:
                    return self._attempt()
                except (Failed, BaselineFailed, Disturbed, RuntimeError) as error:
                    if not (cause := _cause(error)):
                        raise
                    failure = _without_traceback(error)
                causes[cause] += 1
                if causes[cause] > RETRIES[cause]:
                    return self._end(cause, failure)
                self._remedy(cause)

    def _attempt(self) -> Reply:
        """Time the case once; if the probe is slow, end the process and probe again.

        Raises:
            Suspected: The probe is quick without the process.
            Disturbed: The probe is still slow.
        """
        try:
            return self._time(self.graded.worker, self.time_scale)
        except Disturbed as error:
            disturbed = _without_traceback(error)
        self.graded.worker.renew()
        time.sleep(RECOVERY)
        if self.baseline.slow_probe(disturbed.clock):
            raise disturbed
        quick = f"{self.baseline.calibrated[disturbed.clock]:.1f} us without"
        both = f"{disturbed} with its process running, {quick}"
        reason = f"its work goes on between its calls: {both}"
        raise Suspected(RetryCause.LEFTOVER_WORK, reason)

    def _time(self, worker: Worker, time_scale: float) -> Reply:
        options = self.direction, time_scale, self.low_memory
        return _time(self.graded.problem, worker, self.baseline, *options)

    def _remedy(self, cause: RetryCause) -> None:
        """Prepare the next attempt after a cause; FORGED and LEFTOVER_WORK need no preparation."""
        match cause:
            case RetryCause.OUT_OF_MEMORY:
                self.low_memory = True
                self.baseline.restart()
                self.supervisor.make_room(sys.maxsize)
            case RetryCause.KILLED:  # no other process runs until the attempts end
                self.cleanup.enter_context(self.supervisor.alone(self.graded.worker))
            case RetryCause.EAGER:
                self.baseline.restart()
            case RetryCause.OTHER_LOAD:  # the row states how many rounds had slow probes
                self.baseline.patient = False

    def _end(self, cause: RetryCause, error: Exception) -> Reply:
        """Return or raise the final result after a cause has exceeded its RETRIES."""
        match cause:
            case RetryCause.OUT_OF_MEMORY:
                return self._memory_verdict(error)
            case RetryCause.KILLED:  # no other process ran, so that the solution is at fault
                raise Failed("CRASHED", f"{error}, {ISOLATED_TOO}")
        raise error

    def _memory_verdict(self, error: Exception) -> Reply:
        """Return RUNTIME_ERROR if eager, timed in place of the solution, has enough memory.

        Raises:
            torch.OutOfMemoryError: Eager runs out of memory, too.
        """
        self._remedy(RetryCause.OUT_OF_MEMORY)
        self.baseline.patient = False
        reason, fits = out_of_memory(error), True
        try:
            self._time(self.baseline.reference, time_scale=0.0)
        except (Failed, BaselineFailed, RuntimeError) as eager_error:
            fits = not is_out_of_memory(eager_error)
        finally:
            self.baseline.reference.close()
        if not fits:
            raise torch.OutOfMemoryError(reason)
        return Failed("RUNTIME_ERROR", reason, Kind.OUT_OF_MEMORY).reply


RETRIES = {
    RetryCause.OUT_OF_MEMORY: 1,
    RetryCause.KILLED: 1,
    RetryCause.EAGER: 2,
    RetryCause.FORGED: 2,
    RetryCause.LEFTOVER_WORK: 2,
    RetryCause.OTHER_LOAD: 1,
}
"""The number of further attempts after each cause.

Within an attempt, a round of eager is repeated if a probe is slow (`baseline.TRIES`), and the
stopwatch makes further runs (`stopwatch.TRIES`): both take milliseconds and keep earlier samples.
"""


def _cause(error: Exception) -> RetryCause | None:
    """Return the cause of a failure for which a further attempt may help, otherwise None."""
    kinds = {Kind.OUT_OF_MEMORY: RetryCause.OUT_OF_MEMORY, Kind.KILLED: RetryCause.KILLED}
    if cause := kinds.get(kind_of(error)):
        return cause
    if isinstance(error, Suspected):
        return error.cause
    return {BaselineFailed: RetryCause.EAGER, Disturbed: RetryCause.OTHER_LOAD}.get(type(error))


def _without_traceback(error: Fault) -> Fault:
    """Return the exception without its traceback, whose frames hold a case's results."""
    error.__context__ = None
    return error.with_traceback(None)


# --- one attempt ----------------------------------------------------------------------------------


def _time(
    problem: Problem,
    worker: Worker,
    baseline: Baseline,
    direction: Direction,
    time_scale: float,
    low_memory: bool,
) -> Reply:
    with device.watched(device.reader(problem.device)) as readings:
        staged = _staged(problem, worker, direction)
        timed = TimedProcess(worker, staged, direction, low_memory=low_memory)
        baseline.begin(problem, direction, low_memory)
        by_host = problem.case.ranked_by == "host"
        with baseline.on_one_core(worker) if by_host else nullcontext():
            times = _times(timed, baseline, problem, direction, time_scale)
            sustained = _sustained(timed, baseline, times, time_scale, by_host)
    gpu, notes = times.get("gpu", {}), []
    if wrong := _wrong_replay(problem, worker, timed):
        del gpu["graph"]
        notes.append(f"its CUDA graph does not follow its inputs: {wrong}")
    return {
        "gpu": gpu,
        "host": times["host"],
        "sustained": sustained,
        "peak_memory": timed.peak_memory,
        "device_state": {**device.summary(readings), **baseline.slow_probes},
        "notes": notes,
    }


def _staged(problem: Problem, worker: Worker, direction: Direction) -> StagedCalls:
    """Stage the calls, with memory for the results of one call at a time."""
    op, case, device = problem.op, problem.case, problem.device
    names = [OUTPUT, *op.differentiable] if direction == "backward" else [OUTPUT]
    slots = result_slots(problem, names)
    return stage_calls(op, case, device, worker, ROTATION[case.ranked_by], slots)


def _times(
    timed: TimedProcess,
    baseline: Baseline,
    problem: Problem,
    direction: Direction,
    time_scale: float,
) -> dict[ByClock, Samples]:
    """Return the samples by clock, and check the ranking clock's by the stopwatch.

    Raises:
        Failed: A time is too short for the device, or for the stopwatch.
    """
    case, work = problem.case, problem.op.timed_work(problem.case, direction)
    clocks: list[ByClock] = ["host", "gpu"] if problem.device == "cuda" else ["host"]
    clocks.sort(key=lambda clock: clock == case.ranked_by)
    watch, times = Stopwatch(timed, case.ranked_by), {clock: Samples() for clock in clocks}
    first = FEWEST if timed.slow else ROUND_SAMPLES.start
    for clock in clocks:
        samplers, burst = _samplers(timed, clock, direction, case.ranked_by), BURST[case.ranked_by]
        if clock == clocks[-1]:
            samplers["solution"] = watch.followed_by_run(samplers["solution"])
        limit_names = ["copy", *["dense"] * bool(work.products)] if clock == "gpu" else []
        grouped = baseline.group_sampler(["eager", *limit_names], clock, burst)
        seconds = time_scale * SECONDS[case.ranked_by][clock]
        times[clock] = sample_in_rounds(samplers, seconds, PRECISION[clock], grouped, first)
    if gpu := times.get("gpu"):
        if reason := limits.broken(gpu, work, case.dtype):
            raise Failed("IMPOSSIBLE_SPEED", reason)
        if direction == "forward" and not (timed.slow or timed.low_memory) and timed.capture():
            graph = {"graph": timed.sampler("graph", "gpu")}
            gpu |= sample_in_rounds(graph, time_scale * REPLAYS, PRECISION["gpu"], first=first)
    eager = functools.partial(_eagers_stopwatch, problem, baseline, direction)
    if reason := watch.forged(median(times[clocks[-1]]["solution"]), eager):
        raise Suspected(RetryCause.FORGED, reason)
    return times


def _eagers_stopwatch(problem: Problem, baseline: Baseline, direction: Direction) -> Stopwatch:
    """Return the stopwatch of eager in place of the solution, in its own process."""
    reference, clock = baseline.reference, problem.case.ranked_by
    try:
        with eagers_own_faults():
            timed = TimedProcess(reference, _staged(problem, reference, direction), direction)
            with kept_as(baseline.worker.pid, reference.pid):
                watch = Stopwatch(timed, clock)
                take = watch.followed_by_run(timed.sampler("solution", clock, BURST[clock]))
                rounds = [take(ROUND_SAMPLES.start) for _ in range(ROUNDS_OF_EAGER)]
                watch.look_longer(median([*itertools.chain(*rounds)]))
    finally:
        reference.close()
    return watch


def _samplers(
    timed: TimedProcess, clock: ByClock, direction: Direction, ranked_by: ByClock
) -> dict[str, Sampler]:
    """Return the samplers of the solution and, unless calls are slow, its parts by one clock."""
    part = {"gpu": {"backward": "backward"}, "host": {"forward": "no_grad"}}[clock].get(direction)
    names = ["solution", *([part] if part and not timed.slow else [])]
    return {name: timed.sampler(name, clock, BURST[ranked_by]) for name in names}


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


def _wrong_replay(problem: Problem, worker: Worker, timed: TimedProcess) -> str | None:
    """Check the kept results of timed calls; describe the first wrong result of a graph's replays.

    A wrong replay is no failure of the solution: the graph may read a tensor that the solution
    computed from the inputs at the capture, such as a table, and the inputs have changed since.

    Raises:
        Failed: The process sent an extra reply, or a timed call is wrong or changed an input.
    """
    timed.settle()
    if reason := timed.changed():
        raise Failed("MUTATED_INPUT", reason)
    worker.release()  # the oracle needs the memory
    calls = dict(timed.kept)
    replays = calls.pop("graph", [])
    for kept in itertools.chain(*calls.values()):
        if reason := _wrong(problem, kept):
            raise Failed("INCORRECT_NUMERICAL", reason)
    return next(filter(None, (_wrong(problem, kept) for kept in replays)), None)


def _wrong(problem: Problem, kept: KeptResults) -> str | None:
    """Describe the first wrong value of a timed call, if any."""
    drawn = draw(problem.op, problem.case, kept.seed, problem.device)
    arguments, grad_output = _shifted_inputs(kept, *drawn)
    del drawn
    gradients = len(kept.results) > 1
    truth = oracle.truth(problem.op, arguments, grad_output, gradients)
    for name, result in kept.results.items():
        if truth[name].numel():
            wrong, _ = check_values(
                result, truth[name], problem.budgets[name], problem.slack, problem.device
            )
            if wrong:
                return f"{name} of a timed call at {list(wrong.index)}: {wrong.text}"
    return None


def _shifted_inputs(
    kept: KeptResults, arguments: dict[str, Any], grad_output: torch.Tensor
) -> tuple[dict[str, Any], torch.Tensor]:
    """Return the inputs of a timed call, shifted as at the time of the call."""
    inputs = {**arguments, "upstream": grad_output}
    for name, unit in kept.changing.items():
        tensor = inputs[name]
        moved = shifted(tensor, kept.shift * unit).view(tensor.dtype)
        inputs[name] = moved.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
    return inputs, inputs.pop("upstream")
