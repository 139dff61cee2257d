"""The harness's own clock, held against the times that a solution's process reports.

The process takes the samples, so Python in it can forge them. Beside each of its rounds the harness
therefore asks for a run of calls, whose number it alone draws, and measures it from request to
reply. The calls of a round have an input each, and all inputs change before the round, so that no
call can return an earlier one's results; a run of the changes alone, which follows, is subtracted.
A run that does not wait for the GPU takes the calls' host time. One that waits takes their host
time or their GPU time, whichever is longer, since calls that follow each other wait for the slower
of the two.

A call may take three tenths longer by the stopwatch than the process reports. For example, runs of
2.4, 1.9 and 2.1 ms for 90 calls are fine where 20 us are reported: 1.9 ms / 90 is 21 us.

The speed of a host may change: then the shortest changes are of a fast second, and the shortest
calls of a slow one. So a call takes the difference of these, or the median difference of two runs
that follow each other, whichever is less.

On a busy machine a run is stretched. One in which the process or the harness waited for a core
counts by the processor time that the process took, and only where no run was free of that. And
before a host time counts as forged, eager, which is honest, is timed in the solution's place: its
runs too free results, which no sample does, and what they take beyond its samples is allowed.

Where the host is slow and the inputs are large, changing them takes so long that calls do not show
beside it. Eager changes its inputs in the solution's place then: a process that takes no longer has
nothing to hide, and its calls are not held against its report.
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
"""How many times the reported time a call may take by the stopwatch."""
RUN = 1000.0
"""The least microseconds of the calls of a run, by the time that the process reports. Others on the
machine disturb a run as short as a sample no more often than they disturb the sample."""
TRIES = 30
"""Further runs where those beside the rounds are too long: others may have disturbed them all."""
ENOUGH = 0.5
"""Seconds of runs after which no further round has one beside it: calls take that long."""
QUIET = 0.02
"""The share of a run for which the process and the harness may have waited for a core."""


def is_quiet(run: Elapsed) -> bool:
    """Return whether neither the process nor the harness waited for a core for long."""
    return run.waited <= QUIET * run.wall


@dataclass
class Least:
    """The least seconds of runs, divided by their calls."""

    wall: float = math.inf
    """Of quiet runs, from request to reply."""
    busy: float = math.inf
    """Of the processor."""

    def take(self, run: Elapsed, calls: int) -> None:
        """Take a run into account."""
        if is_quiet(run):
            self.wall = min(self.wall, run.wall / calls)
        self.busy = min(self.busy, run.busy / calls)

    def exceeds(self, other: Least) -> bool:
        """Return whether these runs took more than SLACK allows beside the other ones."""
        if max(self.wall, other.wall) < math.inf:
            return self.wall > SLACK * other.wall
        return self.busy > SLACK * other.busy


@dataclass
class Shortest:
    """The least seconds by call, of runs with calls and of runs of the inputs' changes alone."""

    whole: Least = field(default_factory=Least)
    changes: Least = field(default_factory=Least)
    walls: list[float] = field(default_factory=list)
    """By how many seconds a run took longer than the changes next to it, where both were quiet."""
    busies: list[float] = field(default_factory=list)
    """The same of the processor, of all runs."""

    def take(self, whole: Elapsed, changes: Elapsed, calls: int) -> None:
        """Take a run and the one of its changes alone into account."""
        self.whole.take(whole, calls)
        self.changes.take(changes, calls)
        if is_quiet(whole) and is_quiet(changes):
            self.walls.append((whole.wall - changes.wall) / calls)
        self.busies.append((whole.busy - changes.busy) / calls)

    @property
    def call(self) -> float:
        """Return the microseconds of a call; infinity before both kinds of runs."""
        if max(self.whole.wall, self.changes.wall) < math.inf:
            least, paired = self.whole.wall - self.changes.wall, self.walls
        elif max(self.whole.busy, self.changes.busy) < math.inf:
            least, paired = self.whole.busy - self.changes.busy, self.busies
        else:
            return math.inf
        return 1e6 * min(least, statistics.median(paired) if paired else math.inf)


class Stopwatch:
    """The shortest times of a call by the harness's clock, over runs beside a process's rounds."""

    def __init__(self, timed: TimedProcess, ranked_by: ByClock) -> None:
        """Measure nothing yet; the time that ranks the case is the one to be checked."""
        self._timed, self._ranked_by = timed, ranked_by
        self._host, self._both = Shortest(), Shortest()
        self._shown = self._host if ranked_by == "host" else self._both
        self._spent = 0.0
        self.overhead = 0.0
        """The microseconds that the host takes for a call beyond its samples; see `look_longer`."""

    def followed_by_run(self, take: Sampler) -> Sampler:
        """Return a function that takes a round and measures a run after it, the first at least."""

        def taken(rounds: int) -> list[float]:
            samples = take(rounds)
            if self._spent < ENOUGH:
                self.measure(min(samples))
            return samples

        return taken

    def measure(self, reported: float) -> None:
        """Measure a run of calls that are reported to take so many microseconds.

        Where the GPU's time ranks the case, the host's counts only if a run that waits for the GPU
        takes longer than reported.
        """
        if self._ranked_by == "gpu":
            self._run(self._both, reported, wait=True)
        if self._ranked_by == "host" or self._both.call > SLACK * reported:
            self._run(self._host, reported, wait=False)

    def _run(self, shortest: Shortest, reported: float, wait: bool) -> None:
        rounds = math.ceil(RUN / max(reported, 1.0) / self._timed.inputs) + below(2)
        whole, changes = (
            self._timed.throughput_run("solution", rounds, renew=True, run=run, wait=wait)
            for run in (True, False)
        )
        self._spent += whole.wall + changes.wall
        shortest.take(whole, changes, rounds * self._timed.inputs)

    def forged(self, reported: float, eager: Callable[[], Stopwatch]) -> str | None:
        """Return why the calls cannot take the reported microseconds; None if they can.

        Args:
            reported: The host time or the GPU time of a call, whichever ranks the case. A GPU time
                below the host time cannot be told apart from it, and is forged down to it at most.
            eager: Returns eager's stopwatch, of the same calls; asked where nothing else decides.
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
            f" {self._shown.call:.3g} us at least"
        )

    def look_longer(self, reported: float) -> None:
        """Measure TRIES further runs, as a stopwatch whose time seems forged does."""
        for _ in range(TRIES):
            self.measure(reported)
        if self._ranked_by == "host" and self._measured:
            self.overhead = max(self._host.call - reported, 0.0)

    def _slow_changes(self, eager: Stopwatch) -> str | None:
        if not self._shown.changes.exceeds(eager._shown.changes):
            return None
        return "its inputs change more slowly than eager's, so that its calls do not show"

    @property
    def _measured(self) -> bool:
        """Return whether the runs with calls took longer than those without."""
        return 0 < self._shown.call < math.inf

    def _excess(self, reported: float) -> float:
        """Return the microseconds by which the stopwatch's time is too long."""
        if self._ranked_by == "host":
            return self._host.call - SLACK * reported
        known = 0 < self._host.call < math.inf
        host = self._host.call if known else 0.0
        return self._both.call - SLACK * max(reported, host)
