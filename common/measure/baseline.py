"""Eager and the limits, timed in a process of their own, in turns with a solution's.

Nothing that a solution leaves on in its own process (anomaly mode, say) reaches the unit of every
speed. Work that it leaves on the GPU does; a probe shows it. The probe is fixed small work, timed
before each turn and held against its time at the start of the run, when no solution had run.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterator
from typing import Any

from common.errors import UserError
from common.grading.fork_server import ServerEnded
from common.grading.problem import Problem
from common.grading.sweep import Sweep
from common.grading.worker import Worker
from common.measure.timed_process import Failed, TimedProcess, Turn, is_samples, lay_calls
from common.paths import PEERS
from common.solutions import Solution
from common.spec import ByClock, Direction, Op, Work
from common.stats import median

LANE = -1
"""The lane of a sweep's worker that no graded case has."""
SLOW = {"gpu": 1.25, "host": 1.5}
"""The ratio of a probe's time to its calibrated time from which on it is slow, by clock."""
CALIBRATION, LOOK = 30, 3
"""Samples of the probe when it is calibrated, and before a turn; their median counts."""
TRIES, PAUSE = 10, 0.02
"""How often a turn waits for a quick probe, and for how many seconds each time."""
SUSTAINED = 0.5
"""Seconds of a sustained run."""


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
    worker = sweep.worker(Solution(PEERS / "eager" / f"{op.name}.py", op.name), LANE)
    worker.lives = math.inf
    return worker


def calibrate(worker: Worker, device: str) -> dict[ByClock, float]:
    """Return the probe's median microseconds by clock; no solution may have run yet.

    Without a GPU nothing that counts is timed, and no probe is slow.
    """
    clocks: tuple[ByClock, ...] = ("gpu", "host") if device == "cuda" else ()
    return {clock: median(_probe(worker, clock, CALIBRATION)) for clock in clocks}


class Baseline:
    """Eager's process for one op, and its timed case."""

    def __init__(self, worker: Worker, calibrated: dict[ByClock, float]) -> None:
        """Take eager's worker, and the probe's times where nothing disturbs it."""
        self._worker, self.calibrated = worker, calibrated
        self.patient = True
        """Whether a slow probe stops the clock; otherwise it is counted."""
        self.slow_turns = 0
        self._sustained: dict[tuple[str, Direction], dict[str, float]] = {}

    def begin(self, problem: Problem, direction: Direction, work: Work) -> None:
        """Get ready to time eager and the limits of a case.

        Raises:
            BaselineFailed: Eager cannot be run on the case.
        """
        self.slow_turns = 0
        limits = {
            "copy_bytes": work.bytes, "products": work.products, "dtype": problem.case.dtype,
        }  # fmt: skip
        self._case = (problem.case.name, direction)
        device = problem.device
        self._worker.refresh()
        with _eagers_own_faults():
            laid = lay_calls(problem.op, problem.case, device, self._worker, 1)
            self._timed = TimedProcess(self._worker, laid, direction, limits)

    def turn(self, name: str, clock: ByClock, burst: int = 1) -> Turn:
        """Return a function that takes samples of `eager`, `copy` or `dense` between two probes.

        A turn after which the probe is slow is taken again. The function raises Disturbed where the
        probe stays slow, and BaselineFailed.
        """
        take = self._timed.turn("solution" if name == "eager" else name, clock, burst)

        def between_probes(rounds: int) -> list[float]:
            for _ in range(TRIES):
                self._await_quick_probe(clock)
                with _eagers_own_faults():
                    samples = take(rounds)
                if not self.patient or self.slow_probe(clock, 1) is None:
                    break
            return samples

        return between_probes

    def _await_quick_probe(self, clock: ByClock) -> None:
        """Wait until the probe is quick; count one that stays slow, or raise Disturbed."""
        for _ in range(TRIES if self.patient else 1):
            beside = self.slow_probe(clock)
            if beside is None:
                return
            time.sleep(PAUSE)
        if self.patient:
            raise Disturbed(clock, beside or 0.0)
        self.slow_turns += 1

    def slow_probe(self, clock: ByClock, samples: int = LOOK) -> float | None:
        """Return the probe's time in microseconds if it is slow now, else None."""
        usual = self.calibrated.get(clock)
        if usual is None:
            return None
        now = median(_probe(self._worker, clock, samples))
        return now if now > SLOW[clock] * usual else None

    def restart(self) -> None:
        """End eager's process; the next request starts another."""
        self._worker.renew()

    def sustained(self, times: dict[str, float]) -> dict[str, float]:
        """Return the sustained microseconds of eager and the dense products, once per case.

        Args:
            times: The times in microseconds that are expected, by contestant.
        """
        if self._case not in self._sustained:
            self._await_quick_probe("gpu")
            with _eagers_own_faults():
                self._sustained[self._case] = {
                    name: sustained(self._timed, "solution" if name == "eager" else name, each)
                    for name, each in times.items()
                }
        return self._sustained[self._case]

    def release(self) -> None:
        """Free the memory of the case."""
        self._worker.release()


def sustained(timed: TimedProcess, name: str, expected: float) -> float:
    """Return the microseconds of a call that runs on and on, with nothing between two calls."""
    calls = timed.inputs
    rounds = max(round(1e6 * SUSTAINED / expected / calls), 1)
    return round(1e6 * timed.seconds(name, rounds) / (rounds * calls), 2)


def _probe(worker: Worker, clock: ByClock, rounds: int) -> list[float]:
    with _eagers_own_faults():
        reply = worker.ask("probe", clock=clock, rounds=rounds)
        if not is_samples(reply.get("samples"), rounds):
            raise Failed("CRASHED", str(reply.get("reason", "the probe has no samples")))
    return list(reply["samples"])


@contextlib.contextmanager
def _eagers_own_faults() -> Iterator[None]:
    """Raise BaselineFailed for a failure of eager's process, which no solution answers for."""
    try:
        yield
    except (Failed, ServerEnded) as error:
        raise BaselineFailed(f"eager's process failed: {error}") from None
