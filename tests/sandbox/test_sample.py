"""The programs and iterations that stand for all of a launch."""

from __future__ import annotations

import random

import pytest

from common.sandbox.counted import sample


@pytest.mark.parametrize("total", [1, 2, 7, 8, 9, 1000, 524_288])
def test_drawn_programs_stand_for_all(total):
    found = sample.drawn(total, 8, random.Random(0))
    assert sum(weight for _, weight in found) == total
    places = [index for index, _ in found]
    assert places == sorted(set(places)) and places[0] == 0 and places[-1] == total - 1


@pytest.mark.parametrize("total", [0, 1, 4, 5, 6, 1000])
def test_a_sampled_loop_stands_for_all_iterations(total):
    loops = sample.Loops(random.Random(0))
    weights = [loops.weight for _ in loops.sample(range(total))]
    assert sum(weights) == total and len(weights) == min(total, sample.ITERATIONS)


@pytest.mark.parametrize("total", [5, sample.WHOLE_LOOP, sample.WHOLE_LOOP + 1])
def test_a_loop_that_only_loads_integers_runs_whole_if_it_is_short(total):
    loops, seen = sample.Loops(random.Random(0)), []
    for value in loops.sample(range(total)):
        loops.integers += 1
        seen.append(value)
    assert seen == [*range(total)] if total <= sample.WHOLE_LOOP else len(seen) == 4
    assert loops.variance == 0


def test_a_loop_that_loads_integers_for_other_work_is_sampled():
    loops = sample.Loops(random.Random(0))
    seen = []
    for value in loops.sample(range(sample.WHOLE_LOOP)):
        loops.integers += 1
        loops.others += 1
        seen.append(value)
    assert len(seen) == sample.ITERATIONS


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("share", [0.02, 0.5, 0.9])
def test_the_interval_of_random_programs_holds_their_work(seed, share):
    dice, total = random.Random(seed), 10_000
    works = [float(dice.random() < share) for _ in range(total)]
    found = {index: works[index] for index, _ in sample.drawn(total, 250, dice)}
    estimate = sample.estimate(found, total)
    width = sample.half_width(sample.variance(found, total), estimate)
    assert abs(estimate - sum(works)) <= 1.5 * width * estimate
    assert 0.5 < width / (1.96 * ((1 - share) / share / 250) ** 0.5) < 2
