"""Choices that depend on a seed and a key alone, and that are dealt evenly."""

import random
from collections import Counter

import pytest

from common import draws, ops
from common.draws import Draws
from common.grading.exchange import MODE_EVERY, OTHER_EVERY, choose
from common.grading.modes import modes
from common.grading.problem import make_problem
from common.paths import PEERS
from common.solutions import Solution

HALF = ops.load("rotate_half")
CASES = list(HALF.cases("smoke"))
NAMES = tuple(case.name for case in CASES)
EAGER, ANOTHER = (Solution(PEERS / name / "rotate_half.py", "rotate_half") for name in "ab")
SEEDS = range(30)


def test_a_number_is_its_seeds_and_its_keys():
    """Pinned, so that a seed that a failure printed draws the same on another machine."""
    assert Draws(7).number("alice/rope", "mode") == Draws(7, NAMES).number("alice/rope", "mode")
    assert Draws(7).number("alice/rope", "mode") == 157117105749042
    several = [Draws(7), Draws(8)]
    keys = [("alice/rope", "mode"), ("alice/rope", "other"), ("bob/rope", "mode"), ("mode",)]
    assert len({each.number(*key) for each in several for key in keys}) == 8


def test_it_does_not_matter_when_a_choice_is_made():
    drawn = Draws(3, NAMES)
    forwards = [drawn.dealt(4, name, "this") for name in NAMES]
    assert forwards == [drawn.dealt(4, name, "this") for name in reversed(NAMES)][::-1]


@pytest.mark.parametrize("among", [2, 4, 7])
def test_each_number_comes_equally_often(among):
    for seed in SEEDS:
        dealt = Counter(Draws(seed, NAMES).dealt(among, name, "this") for name in NAMES)
        assert max(dealt.values()) - min(dealt[n] for n in range(among)) <= 1


def test_no_case_has_the_same_number_for_every_seed():
    for name in NAMES:
        assert {Draws(seed, NAMES).dealt(4, name, "this") for seed in range(60)} == {0, 1, 2, 3}


def test_a_case_by_itself_has_each_number_of_some_seed():
    """As where a case is graded alone: one in four of the seeds, not none and not all."""
    alone = [Draws(seed, NAMES[:1]).dealt(4, NAMES[0], "this") for seed in range(400)]
    assert 60 < alone.count(0) < 140


def problem(seed, case=CASES[0]):
    return make_problem(HALF, case, Draws(seed, NAMES), "cpu")


def test_a_run_asks_one_case_in_four_on_other_inputs_and_in_every_mode():
    several = modes(HALF, "cpu")
    for seed in SEEDS:
        made = [choose(problem(seed, case), EAGER) for case in CASES]
        other = sum(choices.other for choices in made)
        assert len(CASES) // OTHER_EVERY <= other <= len(CASES) // OTHER_EVERY + 1
        asked = Counter(choices.mode.text for choices in made if choices.mode)
        least = len(CASES) // (MODE_EVERY * len(several))
        assert least >= 1
        assert all(least <= asked[mode.text] <= least + 1 for mode in several)


def test_solutions_have_choices_of_their_own():
    ours, theirs = (
        [choose(problem(0, case), solution).other for case in CASES]
        for solution in (EAGER, ANOTHER)
    )
    assert ours != theirs


def test_the_other_inputs_are_the_same_each_time():
    first, second = problem(5), problem(5)
    assert first.seed == second.seed != problem(6).seed
    assert (first.other.upstream == second.other.upstream).all()
    assert not (first.other.upstream == first.upstream).all()
    assert first.other.unchanged == second.other.unchanged


def test_the_source_is_the_kernels():
    """No seed of a test run is left in the product: it begins with the system's numbers."""
    import subprocess
    import sys

    code = "from common import draws; print(type(draws.SOURCE).__name__)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "SystemRandom\n"
    assert isinstance(draws.SOURCE, random.Random)
