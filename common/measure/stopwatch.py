"""The harness's stopwatch, which checks the times that a solution's process reports.

The process takes the samples, so that Python code in it can forge them. After each of its rounds,
the harness therefore requests a run of calls, whose number it draws at random, and measures the run
from request to reply. Each call of a round has its own input, and all inputs change before the
round, so that no call can return an earlier call's results. Another run only changes the inputs;
its time is subtracted. Runs that do not wait for the GPU take the calls' host time. Runs that wait
take the longer of host time and GPU time, since consecutive calls wait for the slower of the two.

A call may take 30 % longer by the stopwatch than the process reports. For example, runs of 2.4, 1.9
and 2.1 ms for 90 calls are consistent with a report of 20 us: 1.9 ms / 90 is 21 us.

The speed of a host may change: the shortest run of changes may come from a fast second, and the
shortest run of calls from a slow one. The time of a call is therefore the difference of the
shortest runs or the median difference of consecutive runs, whichever is less. If it is lost in the
noise of the changes, as of large inputs on a slow host, the report is accepted.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from common.draws import below
from common.measure.timed_process import Sampler, Samples, TimedProcess
from common.spec import ByClock

SLACK = 1.3
"""The maximum ratio of a call's time by the stopwatch to its reported time."""
RUN = 1000.0
"""The minimum microseconds of a run's calls, by the reported time: other work on the machine
disturbs a run this short no more often than a sample."""
MORE = 30
"""Further runs if those after the rounds are too long: other work may have disturbed them all."""


class Stopwatch:
    """Measures the shortest time of a call by the harness's clock, in runs after the rounds."""

    def __init__(self, timed: TimedProcess, ranked_by: ByClock) -> None:
        """Prepare to check the time that ranks the case; measure nothing yet."""
        self._timed, self._by_gpu = timed, ranked_by == "gpu"
        self._runs: dict[bool, list[tuple[float, float]]] = {False: [], True: []}
        """By whether runs wait for the GPU: the microseconds per call of a run that only changes
        the inputs, and of the next run, which also makes the calls."""

    def followed_by_run(self, take: Sampler) -> Sampler:
        """Return a function that takes a round and measures a run after it."""

        def take_and_measure(rounds: int) -> Samples:
            samples = take(rounds)
            self.measure(min(samples["solution"]))
            return samples

        return take_and_measure

    def measure(self, reported: float) -> None:
        """Measure runs of calls with the given reported microseconds.

        If GPU time ranks the case, measure the host time only if a run that waits for the GPU takes
        longer than reported.
        """
        self._run(reported, wait=self._by_gpu)
        if self._by_gpu and self.call > SLACK * reported:
            self._run(reported, wait=False)

    def _run(self, reported: float, wait: bool) -> None:
        rounds = math.ceil(RUN / max(reported, 1.0) / self._timed.inputs) + below(2)
        changes, with_calls = (
            self._timed.run("solution", rounds, renew=True, call=call, wait=wait)
            for call in (False, True)
        )
        each = 1e6 / (rounds * self._timed.inputs)
        self._runs[wait].append((changes * each, with_calls * each))

    @property
    def call(self) -> float:
        """Return the microseconds of a call by the clock that ranks the case."""
        return _shortest(self._runs[self._by_gpu])

    def excess(self, reported: float) -> float:
        """Return the microseconds of a call that exceed the maximum for its reported time."""
        # if a call's GPU time is below its host time, runs that wait show only the host time
        host = _shortest(self._runs[False]) if self._by_gpu else 0.0
        return self.call - SLACK * max(reported, host)

    def forged(self, reported: float) -> str | None:
        """Return the reason if the reported time of a call is impossibly short, otherwise None.

        The time is in microseconds, by the clock that ranks the case.
        """
        for _ in range(MORE):
            if self.call > 0 and self.excess(reported) <= 0:
                return None
            self.measure(reported)
        if self.call <= 0 or self.excess(reported) <= 0:
            return None
        return (
            f"it reports {reported:.3g} us a call, and by the harness's clock a call takes"
            f" {self.call:.3g} us at least"
        )


def _shortest(pairs: Sequence[tuple[float, float]]) -> float:
    """Return the microseconds of a call; at most 0 if the calls are lost in the noise."""
    if not pairs:
        return 0.0
    changes, with_calls = (min(column) for column in zip(*pairs, strict=True))
    middle = statistics.median(second - first for first, second in pairs)
    return float(min(with_calls - changes, middle))
