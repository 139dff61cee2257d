"""Failures that depend on earlier calls of the process are told as such, and are reproduced."""

import pytest

from common import ops
from common.commands.grader import Asked, Grader
from common.draws import Draws
from common.grading.compiling import Compiler
from common.grading.grade import grade_case
from common.grading.problem import make_problem
from common.grading.remarks import MOST_RECURRED
from common.grading.variations import Change
from tests.support.workers import AS_IT_IS, CHOOSE, MASKED, SAVES, chosen, written

HALF = ops.load("rotate_half")
CASES = {case.name: case for case in HALF.cases("smoke")}
SHORT, LONG = "7x130-float32", "3x2050-float32"
"""Cases of two dimensions, the shorter rows first."""
ALONE = "passes in a process of its own"
TURNS = """
import torch

seen = {{}}

def rotate_half(x):
    width = x.shape[-1]
    if x.dim() != 2 or width not in (130, 2050):
        raise NotImplementedError("other widths")
    a, b = x.chunk(2, -1)
    y = torch.cat((-b, a), -1)
    {fault}
    return y
"""
FAULTS = {
    "a table of the first width": "if seen.setdefault('width', width) < width: y = y * 2",
    "a call too many": "seen[len(seen)] = x.shape\n    if len(set(seen.values())) > 1: y = y + 1",
    "an error of the second width": "assert width == seen.setdefault(0, width)",
}
"""Faults that need a call on rows of another length before."""


@pytest.fixture
def judged(graded_source):
    """Return a function to the verdicts of forward on cases, asked of one process."""

    def judged(fault, names):
        cases, source = [CASES[name] for name in names], TURNS.format(fault=fault)
        graded = graded_source(HALF, cases, source, at_once=1)
        return {each.case.name: each.verdicts["forward"] for each in graded}

    return judged


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_a_failure_after_another_case_is_told_with_that_case(judged, fault):
    found = judged(fault, (SHORT, LONG))
    assert found[SHORT].verdict == "PASSED"
    assert not found[LONG].fine and found[LONG].reason.endswith(ALONE)
    assert found[LONG].after == (SHORT,)
    assert judged(fault, (LONG,))[LONG].fine


def test_a_failure_of_its_own_is_not_told_so_and_is_repeated_few_times(judged, tmp_path):
    fault = "print('x', file=open(__file__ + '.runs', 'a'), end='') if not seen else 0\n"
    fault += "    seen[len(seen)] = 0; y = y * (1 if width == 130 else 2)"
    names = [name for name in CASES if name.split("-")[0] in ("7x130", "3x2050")]
    found = judged(fault, names)
    failing = [verdict for verdict in found.values() if not verdict.fine]
    assert failing and not any(ALONE in verdict.reason for verdict in failing)
    assert all(verdict.after is None for verdict in failing)
    runs = (tmp_path / "somebody" / "rotate_half.py.runs").read_text()
    assert len(runs) <= 1 + MOST_RECURRED


@pytest.mark.parametrize("held", ["(id(mask), mask._version)", "(mask.data_ptr(), mask._version)"])
def test_a_failure_within_a_case_is_told_so_without_cases(worker, monkeypatch, held):
    monkeypatch.setattr(CHOOSE, chosen(change=Change.REPLACED))
    first = f"if not mask.is_inference(): mask = kept.setdefault({held}, mask.clone())"
    source = "kept = {}\n" + SAVES.format(**AS_IT_IS | {"first": first})
    case = next(each for each in MASKED.cases("smoke") if each.name == "20x24x24-bfloat16-span")
    problem = make_problem(MASKED, case, Draws(1), "cpu")
    found = grade_case(problem, worker(source, "masked_linear"))["forward"]
    assert found.verdict == "INCORRECT_NUMERICAL" and found.reason.endswith(ALONE)
    assert "at the addresses of freed ones" in found.reason and found.after == ()


def test_a_case_that_failed_is_asked_again_after_the_cases_before_it(fork_server, tmp_path):
    solution = written(tmp_path, TURNS.format(fault=FAULTS["a table of the first width"]))
    found = {}
    for before in ((), (SHORT,)):
        asked = Asked([solution], {(solution.name, name) for name in (*before, LONG)})
        graded = Grader(fork_server, Compiler("cuda")).smoke_cases(asked)
        found[len(before)] = {each.case.name: each.verdicts["forward"] for each in graded}
    assert {name: verdict.verdict for name, verdict in found[0].items()} == {LONG: "PASSED"}
    assert found[1][LONG].verdict == "INCORRECT_NUMERICAL" and found[1][SHORT].fine
