"""A failing case beside those that lack one of its properties."""

from __future__ import annotations

import dataclasses
import functools
from types import SimpleNamespace

import pytest

from common import ops
from common.commands import check
from common.commands.report import TierReport
from common.grading import contrast
from common.grading import sweep as sweep_module
from common.grading.contrast import TRIES, Failing, contrasts, plainer
from common.grading.grade import grade
from common.grading.sweep import Graded, Sweep
from common.ops._rope_cases import RopeCase
from common.solutions import Solution

HALF, ROPE = ops.load("rotate_half"), ops.load("rope")
CASE = next(c for c in HALF.cases("smoke") if c.values == "subnormal" and not c.interleaved)
KEEPING = functools.partial(grade, keep=True)
FLUSHES = """
import torch

def rotate_half(x):
    a, b = x.chunk(2, -1)
    y = torch.cat((-b, a), -1)
    flushed = (y.abs() < torch.finfo(x.dtype).tiny).all()
    return torch.where(flushed, y - y.detach(), y)
"""
"""It flushes a tensor of nothing but subnormal numbers: one draw in 140 of the normal ones in
float16 has a subnormal number too, and who flushed each number would fail there by chance."""


def case_of(name, op=ROPE):
    return next(case for case in op.cases("smoke") if case.name == name)


@pytest.fixture
def told(tmp_path, fork_server):
    """Return the lines on one failing case."""

    def lines(source, case=CASE, directions=("forward",)):
        path = tmp_path / "rotate_half.py"
        path.write_text(source)
        failing = Failing(Solution(path, "rotate_half"), HALF, case, directions)
        with Sweep("cpu", server=fork_server) as sweep:
            return [each.changes for each in contrasts(sweep, [failing])]

    return lines


def test_the_property_is_named_without_which_the_case_passes(told):
    assert told(FLUSHES) == [("values normal in place of subnormal",)]


def test_nothing_is_said_where_every_case_fails(told):
    assert told("def rotate_half(x):\n    return x + 0") == []


@pytest.mark.slow
def test_check_says_it(tmp_path, fork_server, capsys):
    path = tmp_path / "rotate_half.py"
    path.write_text(FLUSHES)
    several = [Solution(path, "rotate_half")]
    with Sweep("cpu", server=fork_server, grade=KEEPING) as sweep:
        cases = [case for case in HALF.cases("smoke") if not case.span and not case.interleaved]
        check.take_all(sweep.grade(HALF, cases, several), TierReport("smoke", False), fork_server)
    name, said = several[0].name, "values normal in place of subnormal"
    assert f"{name} forward: {CASE.name} passes with {said}\n" in capsys.readouterr().out


class Drawn:
    """A sweep whose answers are given: for each case, whether it passes in each try."""

    def __init__(self, **tries):
        self.tries = {"failing": [False] * TRIES, "plainer": [True] * TRIES} | tries

    def grade(self, op, cases, solutions):
        for case in cases:
            passes = self.tries["failing" if case == CASE else "plainer"].pop(0)
            verdict = SimpleNamespace(verdict="PASSED" if passes else "INCORRECT_NUMERICAL")
            yield Graded(None, SimpleNamespace(case=case), {"forward": verdict})


@pytest.mark.parametrize(
    ("drawn", "count"),
    [
        (Drawn(), 1),
        (Drawn(failing=[False, False, True]), 0),
        (Drawn(plainer=[True, True, False]), 0),
    ],
)
def test_what_differs_from_try_to_try_says_nothing(monkeypatch, drawn, count):
    plain = dataclasses.replace(CASE, values="normal")
    monkeypatch.setattr(contrast, "plainer", lambda case: [plain])
    failing = Failing(Solution(None, "rotate_half"), HALF, CASE, ("forward",))
    assert len(list(contrasts(drawn, [failing]))) == count


def test_each_try_draws_anew(tmp_path, fork_server, monkeypatch):
    seeds = []
    made = sweep_module.make_problem

    def make(op, case, draws, *others):
        seeds.extend([draws.seed] * (case == CASE))
        return made(op, case, draws, *others)

    monkeypatch.setattr(sweep_module, "make_problem", make)
    path = tmp_path / "rotate_half.py"
    path.write_text(FLUSHES)
    failing = Failing(Solution(path, "rotate_half"), HALF, CASE, ("forward",))
    with Sweep("cpu", server=fork_server) as sweep:
        assert list(contrasts(sweep, [failing]))
    assert len(seeds) == len(set(seeds)) == TRIES


def test_each_property_goes_by_itself():
    case = RopeCase(
        s=4, b=2, h=1, d=16, d2=10, dtype="bfloat16", interleaved=True, cp_size=3, cp_rank=1,
        layout="strided", freqs_layout="strided",
    )  # fmt: skip
    changed = [
        {name for name in vars(case) if getattr(case, name) != getattr(other, name)}
        for other in plainer(case)
    ]
    several = "dtype", "layout", "interleaved", "freqs_layout"
    assert changed == [*({name} for name in several), {"cp_size", "cp_rank"}]


def test_of_many_sequences_the_first_half_stays():
    case = next(case for case in ROPE.cases("smoke") if len(case.lengths) > 64)
    assert case.lengths[: len(case.lengths) // 2] in [other.lengths for other in plainer(case)]


def test_a_case_without_elements_is_no_plainer_one(told):
    """As thd's would be in sbhd, whose sizes it lacks."""
    case = next(case for case in ROPE.cases("smoke") if case.tensor_format == "thd")
    failing = Failing(Solution(None, "rope"), ROPE, case, ("forward",))
    assert all(other.tensor_format == "thd" for other in contrast._others(failing))
    assert any(other.tensor_format == "sbhd" for other in plainer(case))
