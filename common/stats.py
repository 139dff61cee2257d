"""Medians, their bootstrap intervals and geometric means, for the clock, the board and plots."""

from __future__ import annotations

import math
from collections.abc import Sequence

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


def geometric_mean(values: Sequence[float]) -> float:
    """Return the geometric mean of positive values, in which 2 and 1/2 cancel out."""
    return math.exp(math.fsum(map(math.log, values)) / len(values))
