"""The rule by which the clock stops: every median is known well enough."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from common.stats import interval, median

ROUNDS = range(10, 201)
"""The numbers of samples of each contestant: at least 10, at most 200."""
EVERY = 10
"""Rounds between two checks of the intervals, each of which costs milliseconds."""


def settled(samples: Sequence[float], precision: float) -> bool:
    """Return whether the median's 95 % interval is at most `precision` times the median wide."""
    low, high = interval(samples)
    return high - low <= precision * median(samples)


def enough(samples: Mapping[str, Sequence[float]], precision: float) -> bool:
    """Return whether every contestant has its least samples and a settled median.

    Between two checks (see `EVERY`) the answer is no.
    """
    done = min(map(len, samples.values()))
    if done < ROUNDS.start or done % EVERY:
        return False
    return all(settled(each, precision) for each in samples.values())
