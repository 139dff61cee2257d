"""Time eager and the limits in their own process, in turns with a solution's process.

A setting that a solution leaves on in its process, such as anomaly mode, cannot change eager's
time, the unit of every speed. Work that it leaves running on the GPU can; a probe detects it. The
probe is a small fixed workload. It is timed before and after each round and compared with its time
at the start of the run, before any solution ran.

Eager's process stays ready for both directions of a case while solutions are timed on that case.
"""

from __future__ import annotations

import contextlib
import os
import random
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

from common.errors import Kind, ServerEnded, UserError, kind_of
from common.grading.problem import Problem
from common.grading.retries import KINDS, Cause
from common.grading.worker import Worker
from common.measure.timed_process import (
    Sampler,
    Samples,
    StagedCalls,
    TimedProcess,
    ask,
    stage_calls,
)
from common.records.lines import STATES
from common.spec import ByClock, Case, Direction
from common.stats import median
from common.timed_requests import Limits, TakeSamples
from common.verdicts import Failure

SLOW = {"gpu": 1.25, "host": 1.5}
"""A probe is slow if it takes more than this many times its calibrated time, by clock."""
CALIBRATION, LOOK = 30, 3
"""Samples of the probe at calibration, and before and after a round; their median is used."""
MOST, PAUSE = 10, 0.02
"""The maximum number of samplings of a round, and of waits for a quick probe after each; the
seconds of a wait."""
LOOKED_AT = 4
"""The number of cores among which the quickest is chosen."""


class Disturbed(Exception):
    """The probe stays slow: other work is running on the machine."""

    def __init__(self, clock: ByClock, disturbed: float) -> None:
        """Store the clock, and the probe's time in microseconds during the disturbance."""
        super().__init__(f"the probe takes {disturbed:.1f} us by the {clock}'s clock")
        self.clock = clock


class BaselineFailed(UserError):
    """Eager's process failed or sent an invalid reply; no solution is at fault."""

    def __init__(self, reason: str, kind: Kind = Kind.NONE) -> None:
        """Store the reason, and the kind of the failure."""
        super().__init__(reason)
        self.kind, self.cause = kind, KINDS.get(kind, Cause.EAGER)


def calibrate(worker: Worker, device: str) -> dict[ByClock, float]:
    """Return the probe's median microseconds by clock; call it before any solution runs.

    Without a GPU the result is empty: no ranked time is taken, and no probe counts as slow.
    """
    clocks: tuple[ByClock, ...] = ("gpu", "host") if device == "cuda" else ()
    return {clock: probe(worker, clock, CALIBRATION) for clock in clocks}


def probe(worker: Worker, clock: ByClock, samples: int = LOOK) -> float:
    """Return the median microseconds of samples of the probe in eager's process."""
    with eagers_own_faults():
        return median(ask(worker, TakeSamples(clock=clock, probes=samples)).probes[0])


class Baseline:
    """Eager's process for one op, and the case that it is ready to time, in one or both directions.

    The process remains ready until it or its shared memory changes.
    """

    def __init__(self, worker: Worker, calibrated: dict[ByClock, float]) -> None:
        """Store eager's worker, and the probe's undisturbed times by clock."""
        self.worker, self.calibrated = worker, calibrated
        self._slow = {clock: SLOW[clock] * quick for clock, quick in calibrated.items()}
        """The microseconds above which a probe is slow, by clock."""
        self.patient = True
        """Whether a slow probe stops the timing; otherwise it is only counted."""
        self.slow_probes: Counter[str] = Counter()
        """The number of rounds whose probes stayed slow, by its name in `device_state`."""
        self._ready: tuple[Case, int] | None = None
        """The case, and `Worker.changes` when the process became ready."""
        self._staged: StagedCalls | None = None
        self._processes: dict[Direction, TimedProcess] = {}
        self._sustained: dict[Direction, Mapping[str, float]] = {}
        self._direction: Direction = "forward"

    def begin(self, problem: Problem, direction: Direction) -> None:
        """Prepare to time eager and the limits on a case; reuse the preparation of an earlier row.

        Raises BaselineFailed if eager failed on the case.
        """
        self.slow_probes, self._direction = Counter(), direction
        self.worker.refresh()
        ready, self._ready = self._ready, None  # it stays None if the preparation fails
        with eagers_own_faults():
            if self._staged is None or ready != (problem.case, self.worker.changes):
                self.release()
                self._staged = stage_calls(problem.op, problem.case, problem.device, self.worker)
            if direction not in self._processes:
                work = problem.op.timed_work(problem.case, direction)
                limits = Limits(work.bytes, work.products, problem.case.dtype)
                process = TimedProcess(self.worker, self._staged, direction, limits)
                self._processes[direction] = process
        self._ready = problem.case, self.worker.changes

    def release(self) -> None:
        """Free the memory of the case."""
        self.worker.release()
        self._staged, self._processes, self._sustained = None, {}, {}

    def sampler(self, names: Sequence[str], clock: ByClock, burst: int = 1) -> Sampler:
        """Return a function that takes samples of some of `eager`, `copy` and `dense`.

        It samples them in a random order, with the probe before and after each. It repeats a round
        with a slow probe once the probe is quick, and raises Disturbed if the probe stays slow.
        """
        process, look = self._processes[self._direction], LOOK * (clock in self.calibrated)

        def between_probes(rounds: int) -> Samples:
            for _ in range(MOST):
                order = random.sample(names, len(names))
                with eagers_own_faults():
                    report = process.sample(order, clock, rounds, burst, look)
                slow = any(median(probe) > self._slow[clock] for probe in report.probes)
                if not slow or not self.patient:
                    break
                self._await_quick_probe(clock)
            self.slow_probes.update([STATES[clock]] * slow)
            return report.samples

        return between_probes

    def _await_quick_probe(self, clock: ByClock) -> None:
        """Wait until the probe is quick, or raise Disturbed."""
        for _ in range(MOST):
            if not (microseconds := self.slow_probe(clock)):
                return
            time.sleep(PAUSE)
        raise Disturbed(clock, microseconds)

    def slow_probe(self, clock: ByClock) -> float:
        """Return the probe's time in microseconds if it is slow now, else 0."""
        microseconds = probe(self.worker, clock) if clock in self._slow else 0.0
        return microseconds if microseconds > self._slow.get(clock, 0.0) else 0.0

    @contextlib.contextmanager
    def on_one_core(self, worker: Worker) -> Iterator[None]:
        """Keep eager's process and a solution's process on the same quick core.

        Their host times then differ by their work, and not by their cores.
        """
        pids = self.worker.pid, worker.pid
        try:
            keep_on({quickest(pids[0], lambda: probe(self.worker, "host"))}, *pids)
            yield
        finally:  # threads that were started within the context, too
            keep_on(os.sched_getaffinity(0), *pids)

    def sustained(self, names: Sequence[str]) -> Mapping[str, float]:
        """Return the sustained microseconds of eager and the dense products, once per case."""
        process = self._processes[self._direction]
        if self._direction not in self._sustained:
            if self.patient:
                self._await_quick_probe("gpu")
            with eagers_own_faults():
                self._sustained[self._direction] = {name: process.sustained(name) for name in names}
        return self._sustained[self._direction]


@contextlib.contextmanager
def eagers_own_faults() -> Iterator[None]:
    """Raise BaselineFailed for a failure of eager's process, which is no solution's fault."""
    try:
        yield
    except (Failure, ServerEnded) as error:
        raise BaselineFailed(f"eager's process failed: {error}", kind_of(error)) from None


# --- the cores of a process -----------------------------------------------------------------------


def quickest(pid: int, probe: Callable[[], float]) -> int:
    """Return the core, of LOOKED_AT random ones, on which a process's probe takes the least time.

    The speeds of cores differ: a virtual machine's core, for example, runs at half speed while
    another machine uses the other hyperthread of the physical core.
    """

    def probe_time(core: int) -> float:
        keep_on({core}, pid)
        return probe()

    cores = sorted(os.sched_getaffinity(0))
    return min(random.sample(cores, min(LOOKED_AT, len(cores))), key=probe_time)


def keep_on(cores: Collection[int], *pids: int) -> None:
    """Keep processes, with all their threads, on `cores`; do nothing for those that have ended."""
    for pid in pids:
        with contextlib.suppress(OSError):
            for task in os.listdir(f"/proc/{pid}/task"):
                with contextlib.suppress(OSError):
                    os.sched_setaffinity(int(task), cores)
