"""Sample callables in rounds, in random order, until their medians are known."""

from __future__ import annotations

import random
import time
from collections.abc import Mapping, Sequence

from common.measure.timed_process import Sampler, Samples
from common.stats import interval, median

SAMPLES = range(15, 201)
"""The number of samples of a timed callable: at least 15, at most 200."""
FEWEST = 3
"""The minimum number of samples of a timed callable, even if they take long; their interval spans
all samples."""
ROUND_SAMPLES = range(5, 16)
"""The number of samples of a callable in a round: 5 at first, up to 15 if rounds are quick. The
intervals are checked only after each round, because the check takes milliseconds."""
QUICK_ROUND = 0.2
"""A round that takes less than this many seconds is quick."""
LONGEST = 1.0
"""Seconds after which the sampling stops once it has FEWEST samples, even before SAMPLES.start."""


def sample_in_rounds(
    samplers: Sequence[Sampler],
    seconds: float,
    precision: float,
    first: int = ROUND_SAMPLES.start,
) -> Samples:
    """Return the samples of every timed callable; see `over` for the end.

    Every round samples every callable, in a random order, so that slow drifts of the machine affect
    all of them.

    Args:
        samplers: Each takes samples of one callable or of several.
        seconds: The time limit once every timed callable has SAMPLES.start samples.
        precision: The maximum width of a known median's 95 % interval, as a share of the median.
        first: The number of samples of a callable in the first round; few if calls may be long.
    """
    samples: Samples = {}
    count, start = first, time.monotonic()
    while True:
        round_start = time.monotonic()
        for sample in random.sample(samplers, len(samplers)):
            for name, taken in sample(count).items():
                samples.setdefault(name, []).extend(taken)
        now = time.monotonic()
        if over(samples, now - start, seconds, precision):
            return samples
        count = next_count(count, now - round_start, min(map(len, samples.values())))


def next_count(count: int, seconds: float, done: int) -> int:
    """Return the number of samples of a callable in the next round: doubled after a quick round.

    A round takes a few milliseconds even if its samples are few.

    Args:
        count: The number of samples of a callable in the last round.
        seconds: The seconds that the last round took.
        done: The number of samples of a callable so far.
    """
    longer = min(2 * count, ROUND_SAMPLES.stop - 1) if seconds < QUICK_ROUND else count
    return min(longer, SAMPLES.stop - 1 - done)


def over(
    samples: Mapping[str, Sequence[float]], elapsed: float, seconds: float, precision: float
) -> bool:
    """Return whether the sampling ends: the medians are known, or a limit is reached.

    For example, it ends after FEWEST samples of calls that take a second.

    Args:
        samples: The samples so far, by timed callable.
        elapsed: Seconds since the sampling started.
        seconds: The time limit once every timed callable has SAMPLES.start samples.
        precision: The maximum width of a known median's 95 % interval, as a share of the median.
    """

    def known(microseconds: Sequence[float]) -> bool:
        low, high = interval(microseconds)
        return high - low <= precision * median(microseconds)

    done = min(map(len, samples.values()))
    if done < FEWEST:
        return False
    if elapsed > LONGEST or done >= SAMPLES.stop - 1:
        return True
    return done >= SAMPLES.start and (elapsed > seconds or all(map(known, samples.values())))
