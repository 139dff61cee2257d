"""Eager and the limits, timed in a process of their own, in turns with a solution's.

Nothing that a solution leaves on in its own process (anomaly mode, say) reaches the unit of every
speed. Work that it leaves on the GPU does; a probe shows it. The probe is fixed small work, timed
before and after each turn and held against its time at the start of the run, when no solution had
run.

Eager's process stays ready for both directions of a case, for as long as solutions are timed on it.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from common.errors import UserError
from common.grading.fork_server import ServerEnded
from common.grading.problem import Problem
from common.grading.sweep import Role, Sweep, eager_of
from common.grading.worker import Worker
from common.measure.affinity import kept_on, quickest
from common.measure.laid_calls import LaidCalls, lay_calls
from common.measure.timed_process import (
    Failed,
    TimedProcess,
    is_samples,
)
from common.measure.turns import Samples, Turns
from common.spec import ByClock, Case, Direction, Op, Work
from common.stats import median

STATES = {"gpu": "slow_probes", "host": "slow_host_probes"}
"""The fields of a row's `State` that count slow probes, by clock."""
SLOW = {"gpu": 1.25, "host": 1.5}
"""The ratio of a probe's time to its calibrated time from which on it is slow, by clock."""
CALIBRATION, LOOK = 30, 3
"""Samples of the probe when it is calibrated, and beside a turn; their median counts."""
TRIES, PAUSE = 10, 0.02
"""How often turns are taken again, how often they wait for a quick probe, and the seconds of each
such wait."""
SUSTAINED = 0.5
"""Seconds of a sustained run."""
TRIAL = 0.03
"""Seconds of the run before it, if a call takes as long as its samples of GPU time."""


class Disturbed(Exception):
    """The probe stays slow: something else is at work on the machine."""

    def __init__(self, clock: ByClock, beside: float) -> None:
        """Keep the clock, and the probe's time in microseconds beside the disturbance."""
        super().__init__(f"the probe takes {beside:.1f} us by the {clock}'s clock")
        self.clock = clock


class BaselineFailed(UserError):
    """Eager's process did not answer as it must; no solution is at fault."""


def eager(sweep: Sweep, op: Op[Any]) -> Worker:
    """Return the worker of eager for the op, in which no case is graded."""
    return sweep.worker(eager_of(op), Role.BASELINE)


def calibrate(worker: Worker, device: str) -> dict[ByClock, float]:
    """Return the probe's median microseconds by clock; no solution may have run yet.

    Without a GPU nothing that counts is timed, and no probe is slow.
    """
    clocks: tuple[ByClock, ...] = ("gpu", "host") if device == "cuda" else ()
    return {clock: median(_probe(worker, clock, CALIBRATION)) for clock in clocks}


@dataclass
class Ready:
    """A case that eager's process is ready for, in one direction or in both."""

    case: Case
    frugal: bool
    laid: LaidCalls
    changes: int = 0
    """`Worker.changes` when it got ready: a change has undone that."""
    timed: dict[Direction, TimedProcess] = field(default_factory=dict)
    sustained: dict[Direction, dict[str, float]] = field(default_factory=dict)


class Baseline:
    """Eager's process for one op, and its timed case."""

    def __init__(
        self, worker: Worker, calibrated: dict[ByClock, float], stand_in: Worker | None = None
    ) -> None:
        """Take eager's worker, and the probe's times where nothing disturbs it.

        `stand_in` is another worker of eager, to be timed in a solution's place.
        """
        self._worker, self.calibrated = worker, calibrated
        self.stand_in = stand_in or worker
        self.patient = True
        """Whether a slow probe stops the clock; otherwise it is counted."""
        self.slow_probes: Counter[str] = Counter()
        """The turns beside which a probe stayed slow, as a row states them."""
        self._ready: Ready | None = None
        self._direction: Direction = "forward"

    def begin(
        self, problem: Problem, direction: Direction, work: Work, frugal: bool = False
    ) -> None:
        """Get ready to time eager and the limits of a case, where they are not from another row.

        With `frugal`, the process holds its inputs alone between its turns.

        Raises:
            BaselineFailed: Eager cannot be run on the case.
        """
        self.slow_probes, self._direction = Counter(), direction
        self._worker.refresh()
        ready = self._ready
        if (
            ready is None
            or (ready.case, ready.frugal) != (problem.case, frugal)
            or self._worker.changes != ready.changes
        ):
            self._ready = None  # for good, if what follows fails
            with eagers_own_faults():
                self._worker.release()
                ready = Ready(problem.case, frugal, self._laid(problem))
        if direction not in ready.timed:
            limits = {
                "copy_bytes": work.bytes, "products": work.products, "dtype": problem.case.dtype,
            }  # fmt: skip
            with eagers_own_faults():
                ready.timed[direction] = TimedProcess(
                    self._worker,
                    ready.laid,
                    direction,
                    limits,
                    frugal=frugal,
                    beside=bool(ready.timed),
                )
        ready.changes = self._worker.changes
        self._ready = ready

    def _laid(self, problem: Problem) -> LaidCalls:
        return lay_calls(problem.op, problem.case, problem.device, self._worker, 1)

    @property
    def _timed(self) -> TimedProcess:
        assert self._ready is not None, "the baseline has begun nothing"
        return self._ready.timed[self._direction]

    def turns(self, names: Sequence[str], clock: ByClock, burst: int = 1) -> Turns:
        """Return a function that takes samples of some of `eager`, `copy` and `dense`.

        They are taken in a random order, with the probe before and after each turn. Turns beside
        which it is slow are taken again once it is quick. The function raises Disturbed where it
        stays slow, and BaselineFailed.
        """

        def between_probes(rounds: int) -> Samples:
            for _ in range(TRIES):
                samples, probes = self._take(names, clock, rounds, burst)
                slow = any(self._is_slow(clock, median(each)) for each in probes)
                if not slow or not self.patient:
                    break
                self._await_quick_probe(clock)
            self.slow_probes.update([STATES[clock]] * slow)
            return samples

        return between_probes

    def _take(
        self, names: Sequence[str], clock: ByClock, rounds: int, burst: int
    ) -> tuple[Samples, list[list[float]]]:
        """Return the samples of one round, and those of the probes around them."""
        order = random.sample(names, len(names))
        look = LOOK if clock in self.calibrated else 0
        with eagers_own_faults():
            samples, probes = self._timed.turns(
                [_in_its_process(name) for name in order],
                clock=clock, rounds=rounds, burst=burst, look=look,
            )  # fmt: skip
        return {name: samples[_in_its_process(name)] for name in order}, probes

    def _await_quick_probe(self, clock: ByClock) -> None:
        """Wait until the probe is quick, or raise Disturbed."""
        for _ in range(TRIES):
            beside = self.slow_probe(clock)
            if beside is None:
                return
            time.sleep(PAUSE)
        raise Disturbed(clock, beside or 0.0)

    def _is_slow(self, clock: ByClock, microseconds: float) -> bool:
        return microseconds > SLOW[clock] * self.calibrated[clock]

    def slow_probe(self, clock: ByClock) -> float | None:
        """Return the probe's time in microseconds if it is slow now, else None."""
        if clock not in self.calibrated:
            return None
        now = median(_probe(self._worker, clock, LOOK))
        return now if self._is_slow(clock, now) else None

    @contextlib.contextmanager
    def on_one_core(self, worker: Worker) -> Iterator[None]:
        """Keep eager's process and a solution's on one core meanwhile, a quick one.

        Their host times then differ by what the two do, and not by their cores.
        """
        mine = self._worker.pid
        core = quickest(mine, lambda: median(_probe(self._worker, "host", LOOK)))
        with kept_on({core}, mine, worker.pid):
            yield

    def restart(self) -> None:
        """End eager's process; the next request starts another."""
        self._worker.renew()
        self._ready = None

    def sustained(self, times: dict[str, float]) -> dict[str, float]:
        """Return the sustained microseconds of eager and the dense products, once per case.

        Args:
            times: The times in microseconds that are expected, by contestant.
        """
        timed = self._timed
        assert self._ready is not None
        known = self._ready.sustained
        if self._direction not in known:
            if self.patient:
                self._await_quick_probe("gpu")
            with eagers_own_faults():
                known[self._direction] = {
                    name: sustained(timed, _in_its_process(name), each)
                    for name, each in times.items()
                }
        return known[self._direction]

    @property
    def worker(self) -> Worker:
        """Return eager's worker."""
        return self._worker

    def release(self) -> None:
        """Free the memory of the case."""
        self._worker.release()
        self._ready = None


def _in_its_process(name: str) -> str:
    """Return the name that eager's process has for a contestant: eager is its solution."""
    return "solution" if name == "eager" else name


def sustained(timed: TimedProcess, name: str, expected: float) -> float:
    """Return the microseconds of a call that runs on and on, with nothing between two calls.

    A short run shows how many calls fill the time: they may wait for the host, which the expected
    microseconds, those of the GPU, do not tell.
    """
    calls, took = timed.inputs, expected
    for seconds in (TRIAL, SUSTAINED):
        rounds = max(round(1e6 * seconds / took / calls), 1)
        took = 1e6 * timed.run_on(name, rounds).wall / (rounds * calls)
    return round(took, 2)


def _probe(worker: Worker, clock: ByClock, rounds: int) -> list[float]:
    with eagers_own_faults():
        reply = worker.ask("probe", clock=clock, rounds=rounds)
        if not is_samples(reply.get("samples"), rounds):
            raise Failed("CRASHED", str(reply.get("reason", "the probe has no samples")))
    return list(reply["samples"])


@contextlib.contextmanager
def eagers_own_faults() -> Iterator[None]:
    """Raise BaselineFailed for a failure of eager's process, which no solution answers for."""
    try:
        yield
    except (Failed, ServerEnded) as error:
        raise BaselineFailed(f"eager's process failed: {error}") from None
