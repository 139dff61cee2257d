"""When the turns end: every median is known, or their time or their rounds are up."""

import functools
import itertools
import random
from types import SimpleNamespace

import numpy as np
import pytest

from common.measure import stopping
from common.measure import turns as turning
from common.measure.turns import take_turns
from common.stats import interval


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
    found = [stopping.enough({"a": [1.0] * count}, 0.5) for count in (1, 10, 19, 20, 25)]
    assert found == [False, False, False, True, True]


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
    samples = take_turns({"a": turns(lambda: 7.0), "b": turns(lambda: 7.0)}, 60, 0.01)
    assert samples == {"a": [7.0] * stopping.ROUNDS.start, "b": [7.0] * stopping.ROUNDS.start}


def test_the_turns_go_on_while_they_are_not_and_end_at_the_most_rounds():
    values = random.Random(0)
    samples = take_turns({"a": turns(lambda: values.uniform(1, 9))}, 60, 0.01)
    assert len(samples["a"]) == stopping.ROUNDS.stop - 1


def test_the_turns_stop_when_their_time_is_up_but_not_before_the_least_rounds(now):
    values, asked = itertools.cycle([1.0, 9.0, 4.0]), []

    def sample():
        now[0] += 1e-6
        return next(values)

    samples = take_turns({"a": turns(sample, asked)}, 0.0, 0.01)
    assert len(samples["a"]) == stopping.ROUNDS.start
    assert asked == [5, 10]


@pytest.mark.parametrize(
    ("first", "taken"), [(stopping.FEWEST, [3]), (2, [2, 2]), (1, [1, 1, 1]), (7, [7])]
)
def test_slow_calls_have_the_fewest_samples_whatever_is_missing(now, first, taken):
    """Each sample takes three seconds, so that the longest time is up after the first."""
    asked = []

    def slow():
        now[0] += 3.0
        return now[0]

    samples = take_turns({"a": turns(slow, asked)}, 0.1, 0.01, first=first)
    assert asked == taken
    low, high = interval(samples["a"])
    assert high - low > 0.5, "the interval says that little is known"


@pytest.mark.parametrize(
    ("turn", "seconds", "done", "then"),
    [(5, 0.01, 5, 10), (10, 0.01, 15, 15), (15, 0.01, 30, 15), (5, 0.3, 5, 5), (15, 0.01, 190, 10)],
)
def test_turns_grow_while_a_round_is_quick(turn, seconds, done, then):
    assert stopping.next_turn(turn, seconds, done) == then


def test_those_asked_together_have_their_samples_beside_the_others():
    order = []

    def beside(rounds):
        order.append("beside")
        return {"b": [7.0] * rounds, "c": [8.0] * rounds}

    def alone(rounds):
        order.append("alone")
        return [6.0] * rounds

    samples = take_turns({"a": alone}, 60, 0.0001, beside)
    assert {name: set(each) for name, each in samples.items()} == {
        "a": {6.0},
        "b": {7.0},
        "c": {8.0},
    }
    assert len(samples["a"]) == len(samples["b"]) == len(samples["c"]) == stopping.ROUNDS.start
    assert sorted(order) == ["alone"] * 2 + ["beside"] * 2


def test_each_contestant_has_a_turn_in_every_round():
    order = []

    def take(name, rounds):
        order.append(name)
        return [random.random() for _ in range(rounds)]

    take_turns({name: functools.partial(take, name) for name in "ab"}, 60, 0.0)
    rounds = list(zip(order[::2], order[1::2], strict=True))
    assert {frozenset(each) for each in rounds} == {frozenset("ab")}
    assert {*rounds} == {("a", "b"), ("b", "a")}, "the order is drawn anew"
