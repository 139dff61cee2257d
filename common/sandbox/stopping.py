"""When a median is known well enough: the rule by which the clock stops.

scipy is imported when the first samples are looked at: a process that only grades needs none of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

ROUNDS = range(10, 201)
"""At least and at most so many samples of each contestant."""
EVERY = 10
"""Rounds between two looks at the intervals, each of which costs milliseconds."""
CONFIDENCE = 0.95
RESAMPLES = 1000


def interval(samples: Sequence[float]) -> tuple[float, float]:
    """The bootstrapped 95 % interval of the median."""
    from scipy import stats

    drawn = stats.bootstrap(
        (samples,),
        np.median,
        n_resamples=RESAMPLES,
        confidence_level=CONFIDENCE,
        method="percentile",
        vectorized=True,
    )
    low, high = drawn.confidence_interval
    return float(low), float(high)


def settled(samples: Sequence[float], precision: float) -> bool:
    """Whether the interval is no wider than so large a part of the median."""
    low, high = interval(samples)
    return high - low <= precision * float(np.median(samples))


def enough(samples: Mapping[str, Sequence[float]], precision: float) -> bool:
    """Whether every contestant has its rounds and a settled median; only some rounds look."""
    done = min(map(len, samples.values()))
    if done < ROUNDS.start or done % EVERY:
        return False
    return all(settled(each, precision) for each in samples.values())
