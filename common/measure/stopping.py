"""The rule by which the clock stops: every median is known well enough."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from common.stats import interval, median

ROUNDS = range(15, 201)
"""The numbers of samples of each contestant: at least 15, at most 200."""
TURN = 5
"""The samples of a turn; the intervals, which cost milliseconds, are checked after each round."""
LONGEST = 3.0
"""Seconds after which a clock stops even before the least samples."""


def settled(samples: Sequence[float], precision: float) -> bool:
    """Return whether the median's 95 % interval is at most `precision` times the median wide."""
    low, high = interval(samples)
    return high - low <= precision * median(samples)


def enough(samples: Mapping[str, Sequence[float]], precision: float) -> bool:
    """Return whether every contestant has its least samples and a settled median."""
    done = min(map(len, samples.values()))
    return done >= ROUNDS.start and all(settled(each, precision) for each in samples.values())


def over(
    samples: Mapping[str, Sequence[float]], elapsed: float, seconds: float, precision: float
) -> bool:
    """Return whether a clock stops: the medians are known, or its time or its rounds are up.

    Args:
        samples: The samples so far, by contestant.
        elapsed: Seconds since the clock started.
        seconds: The time that it may take once every contestant has its least samples.
        precision: The width of a settled interval, as a share of the median.
    """
    done = min(map(len, samples.values()))
    if elapsed > LONGEST or done >= ROUNDS.stop - 1:
        return True
    return done >= ROUNDS.start and (elapsed > seconds or enough(samples, precision))
