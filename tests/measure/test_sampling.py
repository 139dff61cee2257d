"""When the turns end: every median is known, or their time or their rounds are up."""

import functools
import itertools
import random
from types import SimpleNamespace

import pytest

from common.measure import sampling as turning
from common.measure.sampling import FEWEST, SAMPLES, next_count, sample_in_rounds
from common.stats import interval


@pytest.fixture(autouse=True)
def now(monkeypatch):
    """The seconds of a clock that stands still unless a test moves it."""
    now = [0.0]
    monkeypatch.setattr(turning, "time", SimpleNamespace(monotonic=lambda: now[0]))
    return now


def turns(sample, asked=None):
    def take(rounds):
        if asked is not None:
            asked.append(rounds)
        return [sample() for _ in range(rounds)]

    return take


def test_the_turns_stop_when_the_medians_are_known():
    samples = sample_in_rounds({"a": turns(lambda: 7.0), "b": turns(lambda: 7.0)}, 60, 0.01)
    assert samples == {"a": [7.0] * SAMPLES.start, "b": [7.0] * SAMPLES.start}


@pytest.mark.parametrize(("precision", "count"), [(0.01, SAMPLES.stop - 1), (3.0, SAMPLES.start)])
def test_one_that_is_not_known_keeps_all_going_to_the_most_rounds(precision, count):
    loud = random.Random(0)
    samples = sample_in_rounds(
        {"a": turns(lambda: loud.uniform(1, 9)), "b": turns(lambda: 7.0)}, 60, precision
    )
    assert {*map(len, samples.values())} == {count}


def test_the_turns_stop_when_their_time_is_up_but_not_before_the_least_rounds(now):
    values, asked = itertools.cycle([1.0, 9.0, 4.0]), []

    def sample():
        now[0] += 1e-6
        return next(values)

    samples = sample_in_rounds({"a": turns(sample, asked)}, 0.0, 0.01)
    assert len(samples["a"]) == SAMPLES.start
    assert asked == [5, 10]


@pytest.mark.parametrize(("first", "taken"), [(FEWEST, [3]), (2, [2, 2]), (1, [1, 1, 1]), (7, [7])])
def test_slow_calls_have_the_fewest_samples_whatever_is_missing(now, first, taken):
    """Each sample takes three seconds, so that the longest time is up after the first."""
    asked = []

    def slow():
        now[0] += 3.0
        return now[0]

    samples = sample_in_rounds({"a": turns(slow, asked)}, 0.1, 0.01, first=first)
    assert asked == taken
    low, high = interval(samples["a"])
    assert high - low > 0.5, "the interval says that little is known"


@pytest.mark.parametrize(
    ("turn", "seconds", "done", "then"),
    [(5, 0.01, 5, 10), (10, 0.01, 15, 15), (15, 0.01, 30, 15), (5, 0.3, 5, 5), (15, 0.01, 190, 10)],
)
def test_turns_grow_while_a_round_is_quick(turn, seconds, done, then):
    assert next_count(turn, seconds, done) == then


def test_each_has_a_turn_in_every_round_also_those_that_are_asked_together():
    order = []

    def take(name, rounds):
        order.append(name)
        return [random.random() for _ in range(rounds)]

    def beside(rounds):
        order.append("beside")
        return {"b": [7.0] * rounds, "c": [8.0] * rounds}

    samples = sample_in_rounds({"a": functools.partial(take, "a")}, 60, 0.0, beside)
    assert {*map(len, samples.values())} == {SAMPLES.stop - 1}
    assert ({*samples["b"]}, {*samples["c"]}) == ({7.0}, {8.0})
    rounds = list(zip(order[::2], order[1::2], strict=True))
    assert {*rounds} == {("a", "beside"), ("beside", "a")}, "the order is drawn anew"
