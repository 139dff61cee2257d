"""The times of a solution on one case, beside eager's and the limits'.

The solution's process takes the samples of its own calls (`sandbox/clock.py`), and eager's process
those of eager and the limits; the harness asks them for rounds. No sample is trusted: the results
of timed calls are compared with the oracle, the median with the device's peak, and the reported
time with the harness's own stopwatch. RETRIES says what is timed again.
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
from common.grading.memory import Footprint, MemoryBudget
from common.grading.problem import OUTPUT, Problem
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
"""The version of the clock. A board ranks no row beside rows of another version."""
ROTATION = {"gpu": 2, "host": 30}
"""Inputs that the timed calls of a solution take in turn, by the case's `ranked_by`: at least one
for each call of a burst, so that no call can return an earlier one's results."""
BURST = {"gpu": 1, "host": 30}
"""Calls to a sample of host time, by the case's `ranked_by`: few enough for the launch queue."""
SECONDS = {"gpu": {"gpu": 0.4, "host": 0.1}, "host": {"gpu": 0.15, "host": 0.6}}
"""By the case's `ranked_by`, the longest time for GPU and for host samples of one direction.

A clock stops sooner where its medians are known, and later where it has too few samples. Host time
varies more.
"""
REPLAYS = 0.15
"""The longest time in seconds for the samples of a CUDA graph, which rank no case."""
PRECISION = {"gpu": 0.01, "host": 0.02}
"""The widest 95 % interval of a median that is known well enough, as a share of the median."""
ROUNDS_OF_EAGER = 5
"""Rounds of eager in the place of a solution whose time seems forged."""
RECOVERY = 0.2
"""Seconds in which the GPU ends the work of a process that was ended."""


def time_case(
    graded: Graded,
    baseline: Baseline,
    direction: Direction,
    memory_budget: MemoryBudget,
    time_scale: float = 1.0,
) -> Reply:
    """Time forward, or forward with backward, in the solution's process, and check the times.

    Args:
        graded: The case, with the solution's worker.
        baseline: Eager's process for the op.
        direction: `forward`, or `backward` for both.
        memory_budget: The memory of the run.
        time_scale: The part of SECONDS that the clocks may take; below 1, no calls run on and on.

    Returns:
        `gpu` and `host`, the samples by timed callable in microseconds; `sustained`, the
        microseconds of calls in a loop, where arithmetic binds or the host's time ranks;
        `peak_memory` in bytes; `device_state`; and `notes`, lines on what decides nothing. Or a
        `verdict` with its `reason`; or `unmeasured`, the reason for which eager could not be timed.

    Raises:
        torch.OutOfMemoryError: The device does not hold the case, whatever the solution takes.
    """
    with graded.worker.isolated():
        try:
            return Attempts(graded, baseline, direction, memory_budget, time_scale).run()
        except Failed as failed:
            return failed.reply
        except BaselineFailed as failed:
            return {"unmeasured": f"not timed: {failed}"}
        finally:
            graded.worker.release()


# --- what is timed again --------------------------------------------------------------------------


class RetryCause(Enum):
    """The causes that may end an attempt to time a case, and may be another's doing."""

    OUT_OF_MEMORY = "the GPU's memory ran out"
    KILLED = "a SIGKILL of unknown origin ended the solution's process"
    EAGER = "eager's process did not answer as it must"
    FORGED = "the reported times are too short for the stopwatch"
    GOES_ON = "the probe is slow beside the solution's process, and quick without it"
    ANOTHERS = "the probe is slow without the solution's process too"


class Suspected(Failed):
    """Tampering that chance or others on the machine may have feigned."""

    def __init__(self, cause: RetryCause, reason: str) -> None:
        """Keep the cause, FORGED or GOES_ON, and one line of reason."""
        super().__init__("TAMPERED", reason)
        self.cause = cause


@dataclass
class Attempts:
    """The attempts to time one case and direction; see `time_case`."""

    graded: Graded
    baseline: Baseline
    direction: Direction
    memory_budget: MemoryBudget
    time_scale: float
    low_memory: bool = False
    """Whether the processes hold their inputs alone between their rounds."""
    at_the_end: ExitStack = field(default_factory=ExitStack)

    def run(self) -> Reply:
        """Return the times, or what RETRIES has for their want; raise a failure that it lacks."""
        self.baseline.patient, met = True, Counter[RetryCause]()
        footprint = Footprint.by(self.graded.problem.op, self.graded.case)
        self.low_memory = not self.memory_budget.make(
            footprint.timed, keep=[self.graded.worker, self.baseline.worker]
        )
        if self.low_memory:
            self.graded.worker.release()  # grading has left as much in its caches
        with self.at_the_end:
            while True:
                try:
                    return self._attempt()
                except (Failed, BaselineFailed, Disturbed, RuntimeError) as error:
                    if not (cause := _cause(error)):
                        raise
                    failed = _bare(error)
                met[cause] += 1
                if met[cause] > RETRIES[cause]:
                    return self._end(cause, failed)
                self._remedy(cause)

    def _attempt(self) -> Reply:
        """Time the case once; after a disturbance, without the process, see whose it is."""
        try:
            return self._time(self.graded.worker, self.time_scale)
        except Disturbed as error:
            met = _bare(error)
        self.graded.worker.renew()
        time.sleep(RECOVERY)
        if self.baseline.slow_probe(met.clock):
            raise met
        quick = f"{self.baseline.calibrated[met.clock]:.1f} us without"
        reason = f"its work goes on between its calls: {met} beside it, {quick}"
        raise Suspected(RetryCause.GOES_ON, reason)

    def _time(self, worker: Worker, time_scale: float) -> Reply:
        how = self.direction, time_scale, self.low_memory
        return _time(self.graded.problem, worker, self.baseline, *how)

    def _remedy(self, cause: RetryCause) -> None:
        """Do what helps against a cause; FORGED and GOES_ON may have been chance."""
        match cause:
            case RetryCause.OUT_OF_MEMORY:  # those of the next attempt hold inputs alone
                self.low_memory = True
                self.baseline.restart()
                self.memory_budget.make(sys.maxsize, keep=[])
            case RetryCause.KILLED:  # no other process runs until the end
                self.at_the_end.enter_context(self.memory_budget.isolated(self.graded.worker))
            case RetryCause.EAGER:
                self.baseline.restart()
            case RetryCause.ANOTHERS:  # the row says beside how many rounds the probe was slow
                self.baseline.patient = False

    def _end(self, cause: RetryCause, error: Exception) -> Reply:
        """Return or raise what a case comes to where a cause shows once more than RETRIES has it.

        Eager's own failure is none of the solution's.
        """
        match cause:
            case RetryCause.OUT_OF_MEMORY:
                return self._who_lacks_memory(error)
            case RetryCause.KILLED:  # with nothing beside it: its own doing
                raise Failed("CRASHED", f"{error}, {ISOLATED_TOO}")
        raise error

    def _who_lacks_memory(self, error: Exception) -> Reply:
        """Return that the solution takes too much, if eager in its place has enough.

        Raises:
            torch.OutOfMemoryError: Eager has not.
        """
        self._remedy(RetryCause.OUT_OF_MEMORY)
        self.baseline.patient = False
        reason, fits = out_of_memory(error), True
        try:
            self._time(self.baseline.reference, time_scale=0.0)
        except (Failed, BaselineFailed, RuntimeError) as found:
            fits = not is_out_of_memory(found)
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
    RetryCause.GOES_ON: 2,
    RetryCause.ANOTHERS: 1,
}
"""The further attempts after each cause.

Within an attempt, a round of eager's beside which the probe is slow is taken again at once
(`baseline.TRIES`), and the stopwatch makes further runs (`stopwatch.TRIES`): both take milliseconds
and leave the samples so far as they are.
"""


def _cause(error: Exception) -> RetryCause | None:
    """Return the cause of a failure that may be another's doing."""
    kinds = {Kind.OUT_OF_MEMORY: RetryCause.OUT_OF_MEMORY, Kind.KILLED: RetryCause.KILLED}
    if cause := kinds.get(kind_of(error)):
        return cause
    if isinstance(error, Suspected):
        return error.cause
    return {BaselineFailed: RetryCause.EAGER, Disturbed: RetryCause.ANOTHERS}.get(type(error))


def _bare(error: Fault) -> Fault:
    """Return the exception without the frames that it came from: they hold a case's results."""
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
            long = _sustained(timed, baseline, times, time_scale, by_host)
    gpu, notes = times.get("gpu", {}), []
    if wrong := _check_results(problem, worker, timed):
        del gpu["graph"]
        notes.append(f"its CUDA graph does not follow its inputs: {wrong}")
    return {
        "gpu": gpu,
        "host": times["host"],
        "sustained": long,
        "peak_memory": timed.peak_memory,
        "device_state": {**device.summary(readings), **baseline.slow_probes},
        "notes": notes,
    }


def _staged(problem: Problem, worker: Worker, direction: Direction) -> StagedCalls:
    """Stage the calls, with room for the results of each."""
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
    """Return the samples by clock; the clock that ranks the case has the stopwatch beside it.

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
        limits_too = ["copy", *["dense"] * bool(work.products)] if clock == "gpu" else []
        grouped = baseline.group_sampler(["eager", *limits_too], clock, burst)
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
    """Return the stopwatch of eager in the solution's place, in a process of its own."""
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
    """Return the samplers of the solution, and of its parts unless calls are slow, by one clock."""
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
    """Return the times of calls in a loop, where arithmetic binds or the host's time ranks."""
    gpu, host = (
        {name: median(samples) for name, samples in times.get(clock, {}).items()}
        for clock in ("gpu", "host")
    )
    dense = gpu.get("dense", 0) >= gpu.get("copy", math.inf)
    if time_scale < 1 or "solution" not in gpu or not (dense or by_host):
        return {}
    # a call in a loop takes the longer of the two, never less
    expected = {name: max(gpu[name], host.get(name, 0)) for name in ("solution", "eager")}
    own = expected.pop("solution")
    known = baseline.sustained(expected | ({"dense": gpu["dense"]} if dense else {}))
    return {"solution": timed.sustained("solution", own), **known}


# --- the results of timed calls -------------------------------------------------------------------


def _check_results(problem: Problem, worker: Worker, timed: TimedProcess) -> str | None:
    """Compare the kept results of timed calls; describe the first wrong one of a graph's replays.

    A replay is no call of the solution: its graph reads what the solution kept at the capture, such
    as tables, though the inputs have changed since.

    Raises:
        Failed: The process has answered out of turn, or a timed call wrongly.
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
    """Describe the first wrong value of a timed call."""
    drawn = draw(problem.op, problem.case, kept.seed, problem.device)
    arguments, grad_output = _as_they_were(kept, *drawn)
    del drawn
    gradients = len(kept.results) > 1
    truth = oracle.truth(problem.op, arguments, grad_output, gradients)
    for name, result in kept.results.items():
        if truth[name].numel():
            found, _ = check_values(
                result, truth[name], problem.budgets[name], problem.slack, problem.device
            )
            if found:
                return f"{name} of a timed call at {list(found.index)}: {found.text}"
    return None


def _as_they_were(
    kept: KeptResults, arguments: dict[str, Any], grad_output: torch.Tensor
) -> tuple[dict[str, Any], torch.Tensor]:
    """Return the inputs of a timed call, shifted as they were when it was made."""
    inputs = {**arguments, "upstream": grad_output}
    for name, unit in kept.changing.items():
        tensor = inputs[name]
        moved = shifted(tensor, kept.shift * unit).view(tensor.dtype)
        inputs[name] = moved.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
    return inputs, inputs.pop("upstream")
