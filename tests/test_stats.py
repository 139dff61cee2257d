"""The intervals of medians, as scipy gives them."""

import numpy as np
import pytest

from common.stats import interval


def noisy(count, spread, seed):
    return np.random.default_rng(seed).normal(100.0, spread, count)


# What scipy 1.17.1 gave, with numpy 2.4.6, for each of these samples:
#
#     scipy.stats.bootstrap(
#         (samples,), numpy.median, n_resamples=1000, confidence_level=0.95,
#         method="percentile", vectorized=True, rng=numpy.random.default_rng(0),
#     ).confidence_interval
SCIPYS = [
    (noisy(10, 3.0, seed=1).round(2).tolist(), (99.69, 101.775)),
    (noisy(200, 5.0, seed=3).round(2).tolist(), (99.004875, 100.9505)),
    ((50 + np.random.default_rng(4).gamma(2.0, 3.0, 60)).round(2).tolist(), (52.915, 55.48075)),
    ([7.0] * 12 + [9.0] * 8 + [8.5], (7.0, 9.0)),
]


@pytest.mark.parametrize(("samples", "expected"), SCIPYS)
def test_the_interval_is_scipys(samples, expected):
    assert interval(samples) == pytest.approx(expected, rel=1e-12)


def test_one_sample_is_its_own_interval():
    assert interval([3.25]) == interval((3.25,)) == (3.25, 3.25)
