"""Medians, their intervals, and ranks, for the clock, the board and plots."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

import numpy as np

RESAMPLES = 1000
TAILS = (2.5, 97.5)
"""The percentiles that bound a 95 % interval."""


def median(samples: Sequence[float]) -> float:
    """Return the median of the samples."""
    return float(np.median(samples))


def interval(samples: Sequence[float], seed: int = 0) -> tuple[float, float]:
    """Return the 95 % interval of the samples' median, by the percentile bootstrap.

    The same samples give the same interval: that of `scipy.stats.bootstrap` with
    `method="percentile"`, 1,000 resamples and `numpy.random.default_rng(seed)`.
    """
    values = np.asarray(samples, dtype=float)
    generator = np.random.default_rng(seed)
    drawn = values[generator.integers(0, len(values), (RESAMPLES, len(values)))]
    low, high = np.percentile(np.median(drawn, axis=1), TAILS)
    return float(low), float(high)


class Interval(Protocol):
    """The bounds of a value."""

    @property
    def low(self) -> float:
        """The lower bound."""

    @property
    def high(self) -> float:
        """The upper bound."""


def leaders(ordered: Sequence[Interval]) -> list[int]:
    """Return for each interval, best first, the place of its group's leader, counted from 0.

    Those that overlap with a leader are of its group; the first that does not leads the next one.
    """
    intervals: list[int] = []
    for place, each in enumerate(ordered):
        leader = ordered[intervals[-1]] if intervals else each
        overlap = each.low <= leader.high and leader.low <= each.high
        intervals.append(intervals[-1] if intervals and overlap else place)
    return intervals


def ranks(values: Sequence[float]) -> list[float]:
    """Return each value's place in order; equal values share the middle of theirs."""
    below, up_to = (np.searchsorted(np.sort(values), values, side) for side in ("left", "right"))
    return [float(place) for place in (below + up_to - 1) / 2]


def rank_correlation(first: Sequence[float], second: Sequence[float]) -> float:
    """Return Spearman's rank correlation; NaN where all values of one side are equal."""
    one, other = ranks(first), ranks(second)
    if len(set(one)) < 2 or len(set(other)) < 2:
        return math.nan
    return float(np.corrcoef(one, other)[0, 1])
