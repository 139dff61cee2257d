"""The harness's stopwatch, which checks the times that a solution's process reports.

The process takes the samples, so that Python code in it can forge them. After each of its rounds,
the harness therefore requests a run of calls, whose number it draws at random, and measures the run
from request to reply. Each call of a round has its own input, and all inputs change before the
round, so that no call can return an earlier call's results. A second run only changes the inputs;
its time is subtracted. A run that does not wait for the GPU takes the calls' host time. A run that
waits takes the longer of their host time and their GPU time, since consecutive calls wait for the
slower of the two.

A call may take 30 % longer by the stopwatch than the process reports. For example, runs of 2.4, 1.9
and 2.1 ms for 90 calls are consistent with a report of 20 us: 1.9 ms / 90 is 21 us.

The speed of a host may change: the shortest run of changes may come from a fast second, and the
shortest run of calls from a slow one. The time of a call is therefore the difference of the
shortest runs or the median difference of consecutive runs, whichever is less.

On a busy machine, runs take longer. A run in which the process or the harness waited for a core is
used only if no run was free of such waits, and then by the process's processor time. Before a host
time counts as forged, eager, which is honest, is timed in place of the solution. Its runs also
include freeing the results, which samples do not; the time of its runs beyond its samples is
allowed.

If the host is slow and the inputs are large, changing the inputs takes so long that the calls are
lost in the noise. Eager then changes its inputs in place of the solution: if the solution's changes
take no longer than eager's, they hide no work, and its report is accepted.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass, field

from common.draws import below
from common.measure.cores import Elapsed
from common.measure.timed_process import Sampler, TimedProcess
from common.spec import ByClock

SLACK = 1.3
"""The maximum ratio of a call's time by the stopwatch to its reported time."""
RUN = 1000.0
"""The minimum microseconds of a run's calls, by the reported time. Other work on
the machine disturbs a run this short no more often than it disturbs a sample."""
TRIES = 30
"""Further runs if those after the rounds are too long: other work may have disturbed them all."""
ENOUGH = 0.5
"""Total seconds of runs after which rounds have no further runs, because the calls are long."""
QUIET = 0.02
"""The maximum share of a quiet run in which the process and the harness waited for a core."""


def is_quiet(run: Elapsed) -> bool:
    """Return whether the process and the harness hardly waited for a core."""
    return run.waited <= QUIET * run.wall


@dataclass
class Least:
    """The minimum seconds per call over runs."""

    wall: float = math.inf
    """Wall time from request to reply, over quiet runs."""
    busy: float = math.inf
    """Processor time, over all runs."""

    def take(self, run: Elapsed, calls: int) -> None:
        """Include a run."""
        if is_quiet(run):
            self.wall = min(self.wall, run.wall / calls)
        self.busy = min(self.busy, run.busy / calls)

    def exceeds(self, other: Least) -> bool:
        """Return whether these runs took more than SLACK times as long as the other runs."""
        if max(self.wall, other.wall) < math.inf:
            return self.wall > SLACK * other.wall
        return self.busy > SLACK * other.busy


@dataclass
class Shortest:
    """The minimum seconds per call of runs with calls, and of runs that only change the inputs."""

    with_calls: Least = field(default_factory=Least)
    changes: Least = field(default_factory=Least)
    wall_differences: list[float] = field(default_factory=list)
    """Wall seconds per call of a run minus the run of changes after it, if both were quiet."""
    busy_differences: list[float] = field(default_factory=list)
    """The same difference of processor seconds, for all runs."""

    def take(self, with_calls: Elapsed, changes: Elapsed, calls: int) -> None:
        """Include a run with calls and the run of changes after it."""
        self.with_calls.take(with_calls, calls)
        self.changes.take(changes, calls)
        if is_quiet(with_calls) and is_quiet(changes):
            self.wall_differences.append((with_calls.wall - changes.wall) / calls)
        self.busy_differences.append((with_calls.busy - changes.busy) / calls)

    @property
    def call(self) -> float:
        """Return the microseconds of a call; infinity before the first runs."""
        if max(self.with_calls.wall, self.changes.wall) < math.inf:
            least, paired = self.with_calls.wall - self.changes.wall, self.wall_differences
        elif max(self.with_calls.busy, self.changes.busy) < math.inf:
            least, paired = self.with_calls.busy - self.changes.busy, self.busy_differences
        else:
            return math.inf
        return 1e6 * min(least, statistics.median(paired) if paired else math.inf)


class Stopwatch:
    """Measures the shortest time of a call by the harness's clock, in runs after the rounds."""

    def __init__(self, timed: TimedProcess, ranked_by: ByClock) -> None:
        """Prepare to check the time that ranks the case; measure nothing yet."""
        self._timed, self._ranked_by = timed, ranked_by
        self._host, self._waiting = Shortest(), Shortest()
        self._ranking = self._host if ranked_by == "host" else self._waiting
        self._spent = 0.0
        self.overhead = 0.0
        """The host's microseconds per call beyond its reported time; see `look_longer`."""

    def followed_by_run(self, take: Sampler) -> Sampler:
        """Return a function that takes a round and, until ENOUGH, measures a run after it."""

        def take_and_measure(rounds: int) -> list[float]:
            samples = take(rounds)
            if self._spent < ENOUGH:
                self.measure(min(samples))
            return samples

        return take_and_measure

    def measure(self, reported: float) -> None:
        """Measure a run of calls with the given reported microseconds.

        If GPU time ranks the case, measure the host time only if a run that waits for the GPU takes
        longer than reported.
        """
        if self._ranked_by == "gpu":
            self._run(self._waiting, reported, wait=True)
        if self._ranked_by == "host" or self._waiting.call > SLACK * reported:
            self._run(self._host, reported, wait=False)

    def _run(self, shortest: Shortest, reported: float, wait: bool) -> None:
        rounds = math.ceil(RUN / max(reported, 1.0) / self._timed.inputs) + below(2)
        with_calls, changes = (
            self._timed.throughput_run("solution", rounds, renew=True, run=run, wait=wait)
            for run in (True, False)
        )
        self._spent += with_calls.wall + changes.wall
        shortest.take(with_calls, changes, rounds * self._timed.inputs)

    def forged(self, reported: float, eager: Callable[[], Stopwatch]) -> str | None:
        """Return the reason if the reported time is impossibly short, otherwise None.

        Args:
            reported: Microseconds of a call, by the clock that ranks the case. If a call's GPU time
                is below its host time, the stopwatch sees only the host time and cannot detect that
                a process understates the GPU time.
            eager: Returns eager's stopwatch for the same calls; called only if it decides.
        """
        for _ in range(TRIES):
            if self._measured and self._excess(reported) <= 0:
                return None
            self.measure(reported)
        if not self._measured:
            return self._slow_changes(eager())
        if self._ranked_by == "host" and self._excess(reported) <= eager().overhead:
            return None
        return (
            f"it reports {reported:.3g} us a call, and by the harness's clock a call takes"
            f" {self._ranking.call:.3g} us at least"
        )

    def look_longer(self, reported: float) -> None:
        """Measure TRIES further runs, as `forged` does for a suspicious time; set `overhead`."""
        for _ in range(TRIES):
            self.measure(reported)
        if self._ranked_by == "host" and self._measured:
            self.overhead = max(self._host.call - reported, 0.0)

    def _slow_changes(self, eager: Stopwatch) -> str | None:
        if not self._ranking.changes.exceeds(eager._ranking.changes):
            return None
        return "its inputs change more slowly than eager's, so that its calls do not show"

    @property
    def _measured(self) -> bool:
        """Return whether the runs with calls took longer than the runs without calls."""
        return 0 < self._ranking.call < math.inf

    def _excess(self, reported: float) -> float:
        """Return the microseconds of a call that exceed the maximum for its reported time."""
        if self._ranked_by == "host":
            return self._host.call - SLACK * reported
        measured = 0 < self._host.call < math.inf
        host = self._host.call if measured else 0.0
        return self._waiting.call - SLACK * max(reported, host)
