"""Medians with confidence intervals, and ranks, for the clock, the board and plots."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

RESAMPLES = 1000


def median(samples: Sequence[float]) -> float:
    """Return the median of the samples."""
    return float(np.median(samples))


def interval(samples: Sequence[float]) -> tuple[float, float]:
    """Return the 95 % interval of the samples' median, by the percentile bootstrap.

    The interval is deterministic. It equals that of `scipy.stats.bootstrap` with
    `method="percentile"`, 1,000 resamples and `numpy.random.default_rng(0)`.
    """
    values = np.asarray(samples, dtype=float)
    generator = np.random.default_rng(0)
    drawn = values[generator.integers(0, len(values), (RESAMPLES, len(values)))]
    low, high = np.percentile(np.median(drawn, axis=1), (2.5, 97.5))
    return float(low), float(high)


def leaders(intervals: Sequence[tuple[float, float]]) -> list[int]:
    """Return, for each interval, the index of its group's leader; the intervals come best first.

    An interval that overlaps with the current leader joins the leader's group; otherwise it becomes
    the next leader. For example, for [1, 3], [2, 4], [3.5, 5] the result is [0, 0, 2].
    """
    indices: list[int] = []
    for index, (low, high) in enumerate(intervals):
        first_low, first_high = intervals[indices[-1] if indices else index]
        overlap = indices and low <= first_high and first_low <= high
        indices.append(indices[-1] if overlap else index)
    return indices
