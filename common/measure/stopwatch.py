"""The harness's own clock, held against the times that a solution's process reports.

The process takes the samples, so Python in it can forge them. Beside each of its turns the harness
therefore asks for a run of calls, whose number it alone draws, and measures it from request to
reply. The calls of a round have an input each, and all inputs change before the round, so that no
call can return an earlier one's results; a run of the changes alone is subtracted.

A call may take three tenths longer by the stopwatch than the process reports. For example, runs of
2.4, 1.9 and 2.1 ms for 90 calls are fine where 20 us are reported: 1.9 ms / 90 is 21 us.
"""

from __future__ import annotations

import math
import secrets

from common.measure.timed_process import TimedProcess, Turn

SLACK = 1.3
"""How many times the reported time a call may take by the stopwatch."""
RUN = 1000.0
"""The least microseconds of the calls of a run, by the time that the process reports. Others on the
machine disturb a run as short as a sample no more often than they disturb the sample."""
TRIES = 30
"""Further runs where those beside the turns are too long: others may have disturbed them all."""


class Stopwatch:
    """The shortest time of a call by the harness's clock, over runs beside a process's turns."""

    def __init__(self, timed: TimedProcess) -> None:
        """Measure nothing yet."""
        self._timed = timed
        self._whole: dict[int, float] = {}
        self._changes: dict[int, float] = {}

    def beside(self, take: Turn) -> Turn:
        """Return a function that takes a turn and measures a run after it."""

        def taken(rounds: int) -> list[float]:
            samples = take(rounds)
            self.measure(min(samples))
            return samples

        return taken

    def measure(self, reported: float) -> None:
        """Measure one run of calls that are reported to take so many microseconds each."""
        least = math.ceil(RUN / max(reported, 1.0) / self._timed.inputs)
        rounds = least + secrets.randbelow(2)
        for times, run in ((self._whole, True), (self._changes, False)):
            seconds = self._timed.seconds("solution", rounds, renew=True, run=run)
            times[rounds] = min(seconds, times.get(rounds, math.inf))

    @property
    def shortest(self) -> float:
        """Return the least microseconds that a call took."""
        return min(
            1e6 * (whole - self._changes[rounds]) / (rounds * self._timed.inputs)
            for rounds, whole in self._whole.items()
        )

    def forged(self, reported: float) -> str | None:
        """Return why the calls cannot take the reported microseconds; None if they can.

        Args:
            reported: The longer of a call's host time and GPU time. Calls that follow each other
                wait for the one that takes longer.
        """
        for _ in range(TRIES):
            if self._whole and self.shortest <= SLACK * reported:
                return None
            self.measure(reported)
        return (
            f"it reports {reported:.3g} us a call, and by the harness's clock a call takes"
            f" {self.shortest:.3g} us at least"
        )
