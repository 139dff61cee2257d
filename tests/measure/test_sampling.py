"""When the rounds end: every median is known, or their time or their number is up."""

import random
from types import SimpleNamespace

import pytest

from common.measure import timing
from common.measure.timing import ROUND, SAMPLES, sample_in_rounds
from common.stats import interval


@pytest.fixture(autouse=True)
def now(monkeypatch):
    """The seconds of a clock that stands still unless a test moves it."""
    now = [0.0]
    monkeypatch.setattr(timing, "time", SimpleNamespace(monotonic=lambda: now[0]))
    return now


def sampler(sample, *names, asked=None):
    def take(rounds):
        if asked is not None:
            asked.append(rounds)
        return {name: [sample() for _ in range(rounds)] for name in names or ("a",)}

    return take


LOUD = random.Random(0)


@pytest.mark.parametrize(
    ("sample", "precision", "count"),
    [
        (lambda: 7.0, 0.01, 2 * ROUND),
        (lambda: LOUD.uniform(1, 9), 3.0, 2 * ROUND),
        (lambda: LOUD.uniform(1, 9), 0.01, SAMPLES.stop - 1),
    ],
)
def test_the_rounds_go_on_until_each_median_is_known(sample, precision, count):
    samples = sample_in_rounds([sampler(sample), sampler(lambda: 7.0, "b")], 60, precision)
    assert {name: len(each) for name, each in samples.items()} == {"a": count, "b": count}


def test_the_rounds_stop_when_their_time_is_up_but_not_before_the_least_samples():
    asked = []
    sample_in_rounds([sampler(lambda: LOUD.uniform(1, 9), asked=asked)], -1.0, 0.01)
    assert asked == [ROUND] * 2


def test_slow_calls_have_the_samples_of_one_round_whatever_is_missing(now):
    """Each sample takes three seconds, so that the longest time is up after the first."""
    asked = []

    def slow():
        now[0] += 3.0
        return now[0]

    samples = sample_in_rounds([sampler(slow, asked=asked)], 0.1, 0.01)
    assert asked == [ROUND]
    low, high = interval(samples["a"])
    assert high - low > 0.5, "the interval says that little is known"


def test_each_is_sampled_in_every_round_in_an_order_that_is_drawn_anew():
    order = []

    def take(*names):
        values = sampler(LOUD.random, *names)
        return lambda rounds: order.append(names) or values(rounds)

    samples = sample_in_rounds([take("a"), take("b", "c")], 60, 0.0)
    assert {*map(len, samples.values())} == {SAMPLES.stop - 1}
    rounds = {*zip(order[::2], order[1::2], strict=True)}
    assert rounds == {(("a",), ("b", "c")), (("b", "c"), ("a",))}
