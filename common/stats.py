"""Medians with their bootstrap intervals; the only statistics of the clock, the board and the plots."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

RESAMPLES = 1000
TAILS = (2.5, 97.5)
"""Percentiles that bound a 95 % interval."""


def median(samples: Sequence[float]) -> float:
    """Return the median of the samples."""
    return float(np.median(samples))


def interval(samples: Sequence[float], seed: int = 0) -> tuple[float, float]:
    """Return the 95 % interval of the samples' median, by the percentile bootstrap.

    The same samples give the same interval, and the same as `scipy.stats.bootstrap` gives with
    `method="percentile"`, 1,000 resamples and a generator of the same seed.
    """
    values = np.asarray(samples, dtype=float)
    generator = np.random.default_rng(seed)
    drawn = values[generator.integers(0, len(values), (RESAMPLES, len(values)))]
    low, high = np.percentile(np.median(drawn, axis=1), TAILS)
    return float(low), float(high)


def geometric_mean(values: Sequence[float]) -> float:
    """Return the geometric mean, in which twice as fast and half as fast cancel out."""
    return math.exp(math.fsum(map(math.log, values)) / len(values))
