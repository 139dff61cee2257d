"""A solution without gradients that dies in its first case has an unsupported backward."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from common import ops
from common.grading.graded import Graded
from common.grading.sweep import Sweep
from common.grading.undecided import MOST, Undecided
from common.solutions import Solution
from common.verdicts import Verdict

HALF = ops.load("rotate_half")
CASES = [case for case in HALF.cases("smoke") if not case.span and not case.interleaved][:6]
DIES = """
import torch

def rotate_half(x):
    if x.shape == {shape}:
        raise ValueError("not this one")
    a, b = x{detached}.chunk(2, -1)
    return torch.cat((-b, a), -1)
"""


@pytest.mark.parametrize(
    ("detached", "backward"), [(".detach()", "UNSUPPORTED"), ("", "RUNTIME_ERROR")]
)
def test_the_first_case_that_dies_waits_for_the_others(tmp_path, fork_server, detached, backward):
    path = tmp_path / "rotate_half.py"
    path.write_text(DIES.format(shape=CASES[0].shape, detached=detached))
    with Sweep("cpu", server=fork_server) as sweep:
        found = list(sweep.grade(HALF, CASES, [Solution(path, "rotate_half")]))
    assert len(found) == len(CASES)
    (first,) = (each for each in found if each.case == CASES[0])
    assert [each.verdict for each in first.verdicts.values()] == ["RUNTIME_ERROR", backward]


def graded(number, verdict="RUNTIME_ERROR", differentiable=(), handle="a"):
    solution = Solution(f"{handle}.py", "rotate_half")
    worker = SimpleNamespace(solution=solution)
    verdicts = {each: Verdict(handle, "rotate_half", str(number), each, verdict, "died")
                for each in ("forward", "backward")}  # fmt: skip
    return Graded(worker, SimpleNamespace(case=number), verdicts, frozenset(differentiable))


def taken(undecided, *several):
    return [each.case for one in several for each in undecided.take(one)]


def test_a_kernel_that_dies_everywhere_is_shown_after_a_few_cases():
    undecided = Undecided()
    assert taken(undecided, *map(graded, range(MOST))) == []
    assert taken(undecided, graded(MOST)) == list(range(MOST + 1))


def test_what_nothing_decides_is_as_it_was():
    undecided = Undecided()
    taken(undecided, graded(0))
    (left,) = undecided.rest()
    assert left.verdicts["backward"].verdict == "RUNTIME_ERROR"
    assert not list(undecided.rest())


@pytest.mark.parametrize("verdict", ["PASSED", "TIMEOUT", "INCORRECT_SHAPE"])
def test_any_other_verdict_waits_for_nothing(verdict):
    assert taken(Undecided(), graded(0, verdict)) == [0]


def test_solutions_wait_by_themselves():
    undecided = Undecided()
    assert taken(undecided, graded(0), graded(1, "PASSED", [True], "b")) == [1]
    assert taken(undecided, graded(2, "PASSED", [False])) == [0, 2]
