"""Choices that depend on a seed and a key alone, and that are dealt evenly."""

import functools
from collections import Counter
from types import SimpleNamespace

import pytest

from common import ops
from common.draws import Draws
from common.grading.call_plan import CHANGES, WRITTEN_EVERY, choose
from common.grading.variations import modes
from common.paths import PEERS
from common.solutions import Solution

HALF = ops.load("rotate_half")
CASES = list(HALF.cases("smoke"))
DECK = tuple((case.name, case.group) for case in CASES)
NAMES = [case.name for case in CASES]
EAGER = Solution(PEERS / "eager" / "rotate_half.py", "rotate_half")
SEEDS = range(30)


def test_a_number_is_its_seeds_and_its_keys():
    """Pinned, so that a seed that a failure printed draws the same on another machine."""
    assert Draws(7).number("alice/rope", "mode") == Draws(7, DECK).number("alice/rope", "mode")
    assert Draws(7).number("alice/rope", "mode") == 157117105749042
    several = [Draws(7), Draws(8)]
    keys = [("alice/rope", "mode"), ("alice/rope", "other"), ("bob/rope", "mode"), ("mode",)]
    assert len({draws.number(*key) for draws in several for key in keys}) == 8


@pytest.mark.parametrize("among", [2, 4, 7])
def test_each_number_comes_equally_often(among):
    for seed in SEEDS:
        dealt = Counter(Draws(seed, DECK).dealt(among, name, "this") for name in NAMES)
        assert max(dealt.values()) - min(dealt[n] for n in range(among)) <= 1


@functools.cache
def smoke(name):
    return list(ops.load(name).cases("smoke"))


def chosen(op, seed, answered):
    """Return the choices of a run of the smoke cases, for those that a solution answers."""
    cases = smoke(op.name)
    draws = Draws(seed, tuple((case.name, case.group) for case in cases))
    made = (SimpleNamespace(op=op, case=case, device="cpu", draws=draws) for case in cases)
    return [choose(each, EAGER) for each in made if answered(each.case)]


@pytest.mark.parametrize("op", ["rotate_half", "rope"])
@pytest.mark.parametrize(
    "answered",
    [lambda case: True, lambda case: case.dtype == "bfloat16", lambda case: case.dtype != "float32",
     lambda case: not case.interleaved, lambda case: getattr(case, "tensor_format", "") != "thd"],
    ids=["all", "bfloat16", "half types", "halves", "no thd"],
)  # fmt: skip
def test_a_solution_of_a_usual_subset_is_asked_every_change_and_mode(op, answered):
    loaded = ops.load(op)
    several = {mode.text for mode in modes(loaded, "cpu")}
    for seed in SEEDS:
        made = chosen(loaded, seed, answered)
        assert {choices.mode.text for choices in made if choices.mode} == several, seed
        assert all({*CHANGES[1:]} <= {*choices.changes} for choices in made)
        assert sum(CHANGES[0] in each.changes for each in made) >= len(made) // WRITTEN_EVERY - 3
