"""When the clock stops: every median is known, or its time or its rounds are up."""

import itertools
import random
import time

import numpy as np
import pytest

from common.sandbox import clock, stopping


def noisy(count, spread, median=100.0):
    generator = np.random.default_rng(0)
    return list(generator.normal(median, spread, count))


@pytest.mark.parametrize(("precision", "enough"), [(0.002, False), (0.05, True)])
def test_samples_are_enough_once_the_interval_is_narrow(precision, enough):
    assert stopping.settled(noisy(20, spread=1.0), precision) is enough


def test_the_width_is_held_against_the_median(monkeypatch):
    monkeypatch.setattr(stopping, "interval", lambda samples: (49.0, 51.0))
    assert stopping.settled([50.0] * 20, 0.0401)
    assert not stopping.settled([50.0] * 20, 0.0399)


def test_one_contestant_that_is_not_known_keeps_all_going():
    quiet, loud = noisy(20, spread=0.1), noisy(20, spread=30.0)
    assert stopping.enough({"a": quiet, "b": quiet}, 0.01)
    assert not stopping.enough({"a": quiet, "b": loud}, 0.01)


def test_too_few_samples_are_never_enough_however_alike(monkeypatch):
    monkeypatch.setattr(stopping, "ROUNDS", range(20, 100))
    found = [stopping.enough({"a": [1.0] * count}, 0.5) for count in (0, 10, 19, 20, 25, 30)]
    assert found == [False, False, False, True, False, True]


def test_the_clock_stops_when_the_medians_are_known():
    samples = clock._sample(["a", "b"], lambda name: 7.0, seconds=60, precision=0.01)
    assert samples == {"a": [7.0] * stopping.ROUNDS.start, "b": [7.0] * stopping.ROUNDS.start}


def test_the_clock_goes_on_while_they_are_not_and_ends_at_the_most_rounds():
    values = random.Random(0)
    samples = clock._sample(["a"], lambda name: values.uniform(1, 9), 60, precision=0.01)
    assert len(samples["a"]) == stopping.ROUNDS.stop - 1


def test_the_clock_stops_when_its_time_is_up_but_not_before_the_least_rounds():
    values = itertools.cycle([1.0, 9.0, 4.0])

    def slow(name):
        time.sleep(0.01)
        return next(values)

    samples = clock._sample(["a"], slow, seconds=0.0, precision=0.01)
    assert len(samples["a"]) == stopping.ROUNDS.start


def test_nothing_goes_on_past_the_longest_whatever_is_missing(monkeypatch):
    monkeypatch.setattr(clock, "LONGEST", 0.05)

    def slower(name):
        time.sleep(0.03)
        return 1.0

    assert len(clock._sample(["a"], slower, seconds=1.0, precision=0.01)["a"]) < 4
