"""Eager and the limits, timed in a process of their own, in turns with a solution's.

Nothing that a solution leaves on in its own process (anomaly mode, say) reaches the unit of every
speed. Work that it leaves on the GPU does; a probe shows it. The probe is fixed small work, timed
before and after each round and held against its time at the start of the run, when no solution had
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

from common.errors import Kind, ServerEnded, UserError, kind_of
from common.grading.problem import Problem
from common.grading.worker import Worker
from common.measure.cores import kept_on, quickest
from common.measure.sampling import GroupSampler, Samples
from common.measure.timed_process import Failed, StagedCalls, TimedProcess, probe, stage_calls
from common.spec import ByClock, Case, Direction
from common.stats import median

STATES = {"gpu": "slow_probes", "host": "slow_host_probes"}
"""The fields of a row's `State` that count slow probes, by clock."""
SLOW = {"gpu": 1.25, "host": 1.5}
"""The ratio of a probe's time to its calibrated time from which on it is slow, by clock."""
CALIBRATION, LOOK = 30, 3
"""Samples of the probe when it is calibrated, and beside a round; their median counts."""
TRIES, PAUSE = 10, 0.02
"""How often a round is taken in all, how often it waits for a quick probe, and the seconds of each
such wait."""


class Disturbed(Exception):
    """The probe stays slow: something else is at work on the machine."""

    def __init__(self, clock: ByClock, beside: float) -> None:
        """Keep the clock, and the probe's time in microseconds beside the disturbance."""
        super().__init__(f"the probe takes {beside:.1f} us by the {clock}'s clock")
        self.clock = clock


class BaselineFailed(UserError):
    """Eager's process did not answer as it must; no solution is at fault."""

    def __init__(self, reason: str, kind: Kind = Kind.NONE) -> None:
        """Keep the reason, and what is behind it."""
        super().__init__(reason)
        self.kind = kind


def calibrate(worker: Worker, device: str) -> dict[ByClock, float]:
    """Return the probe's median microseconds by clock; no solution may have run yet.

    Without a GPU nothing that counts is timed, and no probe is slow.
    """
    clocks: tuple[ByClock, ...] = ("gpu", "host") if device == "cuda" else ()
    with eagers_own_faults():
        return {clock: median(probe(worker, clock, CALIBRATION)) for clock in clocks}


@dataclass
class PreparedCase:
    """A case that eager's process is ready for, in one direction or in both."""

    case: Case
    low_memory: bool
    staged: StagedCalls
    changes: int = 0
    """`Worker.changes` when it got ready: a change has undone that."""
    timed: dict[Direction, TimedProcess] = field(default_factory=dict)
    sustained: dict[Direction, dict[str, float]] = field(default_factory=dict)


class Baseline:
    """Eager's process for one op, and its timed case."""

    def __init__(
        self, worker: Worker, calibrated: dict[ByClock, float], reference: Worker | None = None
    ) -> None:
        """Take eager's worker, and the probe's times where nothing disturbs it.

        `reference` is another worker of eager, to be timed in a solution's place.
        """
        self.worker, self.calibrated, self.reference = worker, calibrated, reference or worker
        self.patient = True
        """Whether a slow probe stops the clock; otherwise it is counted."""
        self.slow_probes: Counter[str] = Counter()
        """The rounds beside which a probe stayed slow, as a row states them."""
        self._ready: PreparedCase | None = None
        self._direction: Direction = "forward"

    def begin(self, problem: Problem, direction: Direction, low_memory: bool = False) -> None:
        """Get ready to time eager and the limits of a case, where they are not from another row.

        With `low_memory`, the process holds its inputs alone between its rounds.

        Raises:
            BaselineFailed: Eager cannot be run on the case.
        """
        self.slow_probes, self._direction = Counter(), direction
        self.worker.refresh()
        ready, self._ready = self._ready, None  # for good, if what follows fails
        with eagers_own_faults():
            if (
                ready is None
                or (ready.case, ready.low_memory) != (problem.case, low_memory)
                or self.worker.changes != ready.changes
            ):
                self.worker.release()
                staged = stage_calls(problem.op, problem.case, problem.device, self.worker, 1)
                ready = PreparedCase(problem.case, low_memory, staged)
            if direction not in ready.timed:
                work = problem.op.timed_work(problem.case, direction)
                ready.timed[direction] = TimedProcess(
                    self.worker,
                    ready.staged,
                    direction,
                    {"copy_bytes": work.bytes, "products": work.products,
                     "dtype": problem.case.dtype},
                    low_memory=low_memory,
                    keep_other=bool(ready.timed),
                )  # fmt: skip
        ready.changes = self.worker.changes
        self._ready = ready

    @property
    def ready(self) -> PreparedCase:
        """Return the case that the process is ready for."""
        assert self._ready is not None, "the baseline has begun nothing"
        return self._ready

    @property
    def _timed(self) -> TimedProcess:
        return self.ready.timed[self._direction]

    def group_sampler(self, names: Sequence[str], clock: ByClock, burst: int = 1) -> GroupSampler:
        """Return a function that takes samples of some of `eager`, `copy` and `dense`.

        They are taken in a random order, with the probe before and after each round. Rounds beside
        which it is slow are taken again once it is quick. The function raises Disturbed where it
        stays slow, and BaselineFailed.
        """

        def between_probes(rounds: int) -> Samples:
            for _ in range(TRIES):
                samples, probes = self._take(names, clock, rounds, burst)
                slow = any(self._is_slow(clock, median(probe)) for probe in probes)
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
            samples, probes = self._timed.sample_together(
                [_in_its_process(name) for name in order],
                clock=clock, rounds=rounds, burst=burst, look=look,
            )  # fmt: skip
        return {name: samples[_in_its_process(name)] for name in order}, probes

    def _await_quick_probe(self, clock: ByClock) -> None:
        """Wait until the probe is quick, or raise Disturbed."""
        for _ in range(TRIES):
            microseconds = self.slow_probe(clock)
            if microseconds is None:
                return
            time.sleep(PAUSE)
        raise Disturbed(clock, microseconds or 0.0)

    def _is_slow(self, clock: ByClock, microseconds: float) -> bool:
        return microseconds > SLOW[clock] * self.calibrated[clock]

    def slow_probe(self, clock: ByClock) -> float | None:
        """Return the probe's time in microseconds if it is slow now, else None."""
        if clock not in self.calibrated:
            return None
        now = self._probe(clock)
        return now if self._is_slow(clock, now) else None

    def _probe(self, clock: ByClock) -> float:
        with eagers_own_faults():
            return median(probe(self.worker, clock, LOOK))

    @contextlib.contextmanager
    def on_one_core(self, worker: Worker) -> Iterator[None]:
        """Keep eager's process and a solution's on one core meanwhile, a quick one.

        Their host times then differ by what the two do, and not by their cores.
        """
        core = quickest(self.worker.pid, lambda: self._probe("host"))
        with kept_on({core}, self.worker.pid, worker.pid):
            yield

    def sustained(self, times: dict[str, float]) -> dict[str, float]:
        """Return the sustained microseconds of eager and the dense products, once per case.

        Args:
            times: The times in microseconds that are expected, by timed callable.
        """
        known = self.ready.sustained
        if self._direction not in known:
            if self.patient:
                self._await_quick_probe("gpu")
            with eagers_own_faults():
                known[self._direction] = {
                    name: self._timed.sustained(_in_its_process(name), each)
                    for name, each in times.items()
                }
        return known[self._direction]

    def restart(self) -> None:
        """End eager's process; the next request starts another."""
        self.worker.renew()
        self._ready = None

    def release(self) -> None:
        """Free the memory of the case."""
        self.worker.release()
        self._ready = None


def _in_its_process(name: str) -> str:
    """Return the name that eager's process has for a timed callable: eager is its solution."""
    return "solution" if name == "eager" else name


@contextlib.contextmanager
def eagers_own_faults() -> Iterator[None]:
    """Raise BaselineFailed for a failure of eager's process, which no solution answers for."""
    try:
        yield
    except (Failed, ServerEnded) as error:
        raise BaselineFailed(f"eager's process failed: {error}", kind_of(error)) from None
