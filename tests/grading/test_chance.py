"""Choices that nobody foresees, and notes, which decide nothing."""

from __future__ import annotations

import pytest

from common import ops
from common.commands.report import TierReport
from common.grading.chance import LONGEST_WAIT, Chance
from common.grading.sweep import Sweep
from common.solutions import Solution
from common.verdicts import Verdict


def test_a_choice_is_never_certain_to_fail_and_comes_in_time():
    chance = Chance()
    made = [chance.once_in(4, "this") for _ in range(4000)]
    gaps = [len(gap) for gap in "".join(map(str, map(int, made))).split("1")]
    assert max(gaps) <= LONGEST_WAIT * 4
    assert 0 in gaps, "also right after it came"
    assert 800 < sum(made) < 1400
    assert sorted(chance.in_turn(5, "that") for _ in range(10)) == sorted(2 * [*range(5)])


def test_choices_are_undone():
    chance = Chance()
    for _ in range(5):
        chance.once_in(4, "this"), chance.in_turn(3, "that")
    before = chance.state()
    for _ in range(5):
        chance.once_in(4, "this"), chance.in_turn(3, "that"), chance.in_turn(2, "another")
    assert chance.state() != before
    chance.go_back(before)
    assert chance.state() == before
    chance.in_turn(3, "that")
    assert chance.state() != before, "what was kept stays as it was"


def test_choices_are_made_once_more():
    """And change none of those that come later."""
    chance = Chance()

    def draw():
        return chance.once_in(4, "this"), chance.in_turn(3, "that")

    for _ in range(50):
        chance.made = {}
        drawn, made, before = draw(), dict(chance.made), chance.state()
        with chance.again(made):
            assert draw() == drawn
        assert (chance.state(), chance.made) == (before, made)


@pytest.mark.parametrize(("body", "drawn"), [("raise NotImplementedError", False), ("1 / 0", True)])
def test_a_case_that_is_not_supported_takes_no_draw(tmp_path, fork_server, body, drawn):
    """Most cases of rotate_half are of an option that few solutions take."""
    path = tmp_path / "rotate_half.py"
    path.write_text(f"def rotate_half(x):\n    {body}\n")
    solution, op = Solution(path, "rotate_half"), ops.load("rotate_half")
    with Sweep("cpu", server=fork_server, overlap=False) as sweep:
        assert len(list(sweep.grade(op, list(op.cases("smoke"))[:5], [solution]))) == 5
        assert (sweep.worker(solution).chance.state() != Chance().state()) is drawn


@pytest.mark.parametrize("verbose", [False, True])
def test_check_shows_notes_where_it_shows_each_case(verbose, capsys):
    passed = Verdict("a/rope", "rope", "7x2", "backward", "PASSED", notes=("a second one fails",))
    op = ops.load("rope")
    TierReport("smoke", verbose).add(op, next(op.cases("smoke")), [passed])
    shown = "a/rope 7x2 backward, a note: a second one fails\n"
    assert capsys.readouterr().out == (shown if verbose else "")
