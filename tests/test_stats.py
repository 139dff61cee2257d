"""The intervals of medians, as scipy gives them."""

import numpy as np
import pytest

from common.stats import interval


def noisy(count, spread, seed=0, digits=None):
    samples = np.random.default_rng(seed).normal(100.0, spread, count)
    return list(samples if digits is None else samples.round(digits))


def skewed(count, seed):
    return list((50 + np.random.default_rng(seed).gamma(2.0, 3.0, count)).round(2))


# What scipy 1.17.1 gave, with numpy 2.4.6, for each of these samples:
#
#     scipy.stats.bootstrap(
#         (samples,), numpy.median, n_resamples=1000, confidence_level=0.95,
#         method="percentile", vectorized=True, rng=numpy.random.default_rng(0),
#     ).confidence_interval
SCIPYS = [
    (noisy(10, 3.0, seed=1, digits=2), (99.69, 101.775)),
    (noisy(200, 5.0, seed=3, digits=2), (99.004875, 100.9505)),
    (skewed(60, seed=4), (52.915, 55.48075)),
    ([7.0] * 12 + [9.0] * 8 + [8.5], (7.0, 9.0)),
]


@pytest.mark.parametrize(("samples", "expected"), SCIPYS)
def test_the_interval_is_scipys(samples, expected):
    assert interval(samples) == pytest.approx(expected, rel=1e-12)


def test_one_sample_is_its_own_interval():
    assert interval([3.25]) == interval((3.25,)) == (3.25, 3.25)
