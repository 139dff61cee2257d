"""The times of a solution on one case, beside eager's and the limits'.

The solution's process takes the samples of its own calls (`sandbox/clock.py`), and eager's process
those of eager and the limits; the harness asks them for turns. No sample is trusted: the results of
timed calls are compared with the oracle, the median with the device's peak, and the reported time
with the harness's own stopwatch.
"""

from __future__ import annotations

import functools
import itertools
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext

import torch

from common.errors import is_out_of_memory, out_of_memory
from common.grading.calls import result_slots
from common.grading.memory import Footprint, Room
from common.grading.problem import OUTPUT, Problem
from common.grading.worker import Worker
from common.measure import checks, device, limits, stopping
from common.measure.affinity import kept_as
from common.measure.baseline import (
    Baseline,
    BaselineFailed,
    Disturbed,
    eagers_own_faults,
    sustained,
)
from common.measure.killed import time_unkilled
from common.measure.laid_calls import LaidCalls, lay_calls
from common.measure.stopwatch import Stopwatch
from common.measure.timed_process import Failed, TimedProcess, Turn
from common.measure.turns import Samples, take_turns
from common.spec import ByClock, Direction
from common.stats import median
from common.wire import Reply

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
ATTEMPTS = 3
"""How often a fault must show in a row before it is the solution's, since others cause some."""
TURNS_OF_EAGER = 5
"""Turns of eager in the place of a solution whose time seems forged."""
RECOVERY = 0.2
"""Seconds in which the GPU ends the work of a process that was ended."""


def time_case(
    problem: Problem,
    worker: Worker,
    baseline: Baseline,
    direction: Direction,
    room: Room,
    patience: float = 1.0,
) -> Reply:
    """Time forward, or forward with backward, in the solution's process, and check the times.

    Where memory runs out, the case is timed once more with all that others can give back, and where
    the process was killed, with nothing but eager's beside it.

    Args:
        problem: The problem, already graded.
        worker: The worker of the solution.
        baseline: Eager's process for the op.
        direction: `forward`, or `backward` for both.
        room: The memory of the run.
        patience: The part of SECONDS that the clocks may take; below 1, no calls run on and on.

    Returns:
        `gpu` and `host`, the samples by contestant in microseconds; `sustained`, the microseconds
        of calls that run on and on, where arithmetic binds; `peak_memory` in bytes; `device_state`;
        and `notes`, lines on what decides nothing. Or a `verdict` with its `reason`; or
        `unmeasured`, the reason for which eager could not be timed.

    Raises:
        torch.OutOfMemoryError: The device does not hold the case, whatever the solution takes.
    """
    try:
        return _in_room(problem, worker, baseline, direction, room, patience)
    except Failed as failed:
        return {"verdict": failed.verdict, "reason": failed.reason}
    except BaselineFailed as failed:
        return {"unmeasured": f"not timed: {failed}"}
    finally:
        worker.release()


def _in_room(
    problem: Problem,
    worker: Worker,
    baseline: Baseline,
    direction: Direction,
    room: Room,
    patience: float,
) -> Reply:
    """Time the case, again where memory runs out; then find whose fault that is."""
    footprint = Footprint.by(problem.op, problem.case)
    scarce = not room.make(footprint.timed, keep=[worker, baseline.worker])
    if scarce:
        worker.release()  # grading has left as much in its caches
    attempt = functools.partial(_time, problem, worker, baseline, direction, patience)
    for frugal in (scarce, True):
        try:
            once = functools.partial(attempt, frugal)
            timed = functools.partial(_undisturbed, once, worker, baseline)
            return time_unkilled(timed, worker, room)
        except (Failed, BaselineFailed, RuntimeError) as error:
            if not is_out_of_memory(str(error)):
                raise
            reason = out_of_memory(str(error))
        baseline.restart()
        room.make(sys.maxsize, keep=[])
    if _fits(problem, baseline, direction):
        raise Failed("RUNTIME_ERROR", reason)
    raise torch.OutOfMemoryError(reason)


def _fits(problem: Problem, baseline: Baseline, direction: Direction) -> bool:
    """Return whether the case can be timed with eager in the solution's place."""
    stand_in = baseline.stand_in
    try:
        _time(problem, stand_in, baseline, direction, patience=0.0, frugal=True)
    except (Failed, BaselineFailed, RuntimeError) as error:
        return not is_out_of_memory(str(error))
    finally:
        stand_in.close()
    return True


class Forged(Failed):
    """The reported times are too short for the stopwatch."""


def _undisturbed(attempt: Callable[[], Reply], worker: Worker, baseline: Baseline) -> Reply:
    """Time the case, again after a disturbance, a time that seems forged, or a failure of eager.

    Others on the machine may have caused any of these. A disturbance is the solution's if it ends
    with the solution's process each time; if it goes on, it is another's, and the row says so.
    """
    baseline.patient = True
    for _ in range(ATTEMPTS):
        try:
            return attempt()
        except BaselineFailed as found:
            if is_out_of_memory(str(found)):
                raise
            baseline.restart()
            failed: Exception = _bare(found)
        except Forged as found:
            failed = _bare(found)
        except Disturbed as met:
            worker.renew()
            time.sleep(RECOVERY)
            if baseline.slow_probe(met.clock):
                baseline.patient = False
            quick = baseline.calibrated[met.clock]
            reason = f"its work goes on between its calls: {met} beside it, {quick:.1f} us without"
            failed = Failed("TAMPERED", reason)
    if baseline.patient:
        raise failed
    return attempt()


def _bare(error: Exception) -> Exception:
    """Return the exception without the frames that it came from: they hold a case's results."""
    error.__context__ = None
    return error.with_traceback(None)


def _time(
    problem: Problem,
    worker: Worker,
    baseline: Baseline,
    direction: Direction,
    patience: float,
    frugal: bool,
) -> Reply:
    case, where = problem.case, problem.device
    work = problem.op.timed_work(case, direction)
    with device.Monitor(device.reader(_uuid()) if where == "cuda" else None) as monitor:
        laid = _laid(problem, worker, direction)
        timed = TimedProcess(worker, laid, direction, frugal=frugal)
        baseline.begin(problem, direction, work, frugal)
        shared = baseline.on_one_core(worker) if case.ranked_by == "host" else nullcontext()
        with shared:
            times = _times(timed, baseline, problem, direction, patience)
        long = _sustained(timed, baseline, times.get("gpu", {}), patience)
    gpu, notes = times.get("gpu", {}), []
    if wrong := checks.check_results(problem, worker, timed):
        del gpu["graph"]
        notes.append(f"its CUDA graph does not follow its inputs: {wrong}")
    return {
        "gpu": gpu,
        "host": times["host"],
        "sustained": long,
        "peak_memory": timed.peak_memory,
        "device_state": {**monitor.state, **baseline.slow_probes},
        "notes": notes,
    }


def _laid(problem: Problem, worker: Worker, direction: Direction) -> LaidCalls:
    """Lay the calls, with room for the results of each."""
    op, case, device = problem.op, problem.case, problem.device
    names = [OUTPUT, *op.differentiable] if direction == "backward" else [OUTPUT]
    slots = result_slots(problem, names)
    return lay_calls(op, case, device, worker, ROTATION[case.ranked_by], slots)


def _times(
    timed: TimedProcess, baseline: Baseline, problem: Problem, direction: Direction, patience: float
) -> dict[ByClock, Samples]:
    """Return the samples by clock; the clock that ranks the case has the stopwatch beside it.

    Raises:
        Failed: A time is too short for the device, or for the stopwatch.
    """
    case, work = problem.case, problem.op.timed_work(problem.case, direction)
    clocks: list[ByClock] = ["host", "gpu"] if problem.device == "cuda" else ["host"]
    clocks.sort(key=lambda clock: clock == case.ranked_by)
    watch, times = Stopwatch(timed, case.ranked_by), {clock: Samples() for clock in clocks}
    first = stopping.FEWEST if timed.slow else stopping.TURNS.start
    for clock in clocks:
        turns, burst = _own(timed, clock, direction, case.ranked_by), BURST[case.ranked_by]
        if clock == clocks[-1]:
            turns["solution"] = watch.beside(turns["solution"])
        limits_too = ["copy", *["dense"] * bool(work.products)] if clock == "gpu" else []
        beside = baseline.turns(["eager", *limits_too], clock, burst)
        seconds = patience * SECONDS[case.ranked_by][clock]
        times[clock] = take_turns(turns, seconds, PRECISION[clock], beside, first)
    if gpu := times.get("gpu"):
        if reason := limits.broken(gpu, work, case.dtype):
            raise Failed("IMPOSSIBLE_SPEED", reason)
        if direction == "forward" and not (timed.slow or timed.frugal) and timed.capture():
            graph = {"graph": timed.turn("graph", "gpu")}
            gpu |= take_turns(graph, patience * REPLAYS, PRECISION["gpu"], first=first)
    eager = functools.partial(_eagers_stopwatch, problem, baseline, direction)
    if reason := watch.forged(median(times[clocks[-1]]["solution"]), eager):
        raise Forged("TAMPERED", reason)
    return times


def _eagers_stopwatch(problem: Problem, baseline: Baseline, direction: Direction) -> Stopwatch:
    """Return the stopwatch of eager in the solution's place, in a process of its own."""
    stand_in, clock = baseline.stand_in, problem.case.ranked_by
    try:
        with eagers_own_faults():
            timed = TimedProcess(stand_in, _laid(problem, stand_in, direction), direction)
            with kept_as(baseline.worker.pid, stand_in.pid):
                watch = Stopwatch(timed, clock)
                take = watch.beside(timed.turn("solution", clock, BURST[clock]))
                turns = [take(stopping.TURNS.start) for _ in range(TURNS_OF_EAGER)]
                watch.look_longer(median([*itertools.chain(*turns)]))
    finally:
        stand_in.close()
    return watch


def _own(
    timed: TimedProcess, clock: ByClock, direction: Direction, ranked_by: ByClock
) -> dict[str, Turn]:
    """Return the turns of the solution, and of its parts unless calls are slow, by one clock."""
    part = {"gpu": {"backward": "backward"}, "host": {"forward": "no_grad"}}[clock].get(direction)
    names = ["solution", *([part] if part and not timed.slow else [])]
    return {name: timed.turn(name, clock, BURST[ranked_by]) for name in names}


def _sustained(
    timed: TimedProcess, baseline: Baseline, gpu: Samples, patience: float
) -> dict[str, float]:
    """Return the times of calls that run on and on, where dense products are the slower limit."""
    medians = {name: median(samples) for name, samples in gpu.items()}
    if patience < 1 or "dense" not in medians or medians["dense"] < medians["copy"]:
        return {}
    known = baseline.sustained({name: medians[name] for name in ("eager", "dense")})
    return {"solution": sustained(timed, "solution", medians["solution"]), **known}


def _uuid() -> str:
    return str(torch.cuda.get_device_properties().uuid)
