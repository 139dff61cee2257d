"""The rows that `check`, `bench` and `profile` get: of which cases, with what share of the time."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from common import ops
from common.grading.sweep import Graded, TooLarge
from common.measure import rows
from common.measure.rows import Measurement
from common.verdicts import Verdict

HALF = ops.load("rotate_half")
CASES = list(HALF.cases("smoke"))[:2]
SOLUTIONS = [SimpleNamespace(name=name, peer=False, op=HALF.name) for name in "abc"]
DIGESTS = dict.fromkeys("abc", ("s", "h"))
PASSED = {
    each: Verdict("a", "rotate_half", "case", each, "PASSED") for each in ("forward", "backward")
}


class Solution(SimpleNamespace):
    """A solution by its name."""

    __hash__ = object.__hash__


class Baseline:
    """Eager's process, of which nothing is asked."""

    def __init__(self, *_):
        pass

    def release(self):
        pass


@pytest.fixture
def sweep(monkeypatch):
    """A sweep in which each solution passes; `further` holds the further answers asked for."""

    def grade(op, cases, solutions, skip, repeats):
        found.further.append(repeats)
        for case in cases:
            for solution in solutions:
                if not skip(solution, case):
                    problem = SimpleNamespace(op=op, case=case, device="cuda")
                    yield Graded(SimpleNamespace(solution=solution, crashes=0), problem, PASSED)

    monkeypatch.setattr(rows, "Baseline", Baseline)
    monkeypatch.setattr(rows.baseline, "calibrate", lambda *_: {})
    workers = SimpleNamespace(worker=lambda *_: None)
    found = SimpleNamespace(device="cuda", grade=grade, supervisor=workers, further=[])
    return found


def test_a_case_gets_its_share_of_the_further_answers(sweep):
    for tier, time_scale in (("board", None), ("board", 0.3), ("plot", None)):
        measurement = Measurement(sweep, {}, tier=tier, time_scale=time_scale)
        assert not [*measurement.measure([], [(HALF, CASES)])]
    assert sweep.further == [20, 6, 0]


def test_a_case_that_does_not_fit_is_left_out_for_all_and_for_good(sweep, monkeypatch):
    """The rows before it stay; the board shows none of a case that is left out."""
    asked = []

    def time_case(graded, *_):
        asked.append((graded.solution.name, graded.case))
        if graded.case == CASES[0] and graded.solution.name == "b":
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return {"unmeasured": "no"}

    monkeypatch.setattr(rows, "time_case", time_case)
    solutions = [Solution(name=name, peer=False, op=HALF.name) for name in "abc"]
    measurement = Measurement(sweep, dict.fromkeys(solutions, ("s", "h")))
    found = [*measurement.measure(solutions, [(HALF, CASES)])]
    left = [one for one in found if isinstance(one, TooLarge)]
    assert left == [TooLarge(HALF, CASES[0], "out of memory")]
    assert [name for name, case in asked if case == CASES[0]] == ["a", "a", "b"]
    assert [name for name, case in asked if case == CASES[1]] == list("aabbcc")
    assert not [*measurement.measure(solutions, [(HALF, CASES[:1])])], "another part of a run"


def test_who_ends_in_each_timed_case_is_timed_no_more(sweep, monkeypatch):
    """Timed last it may pass, since graded it does."""
    worker = SimpleNamespace(solution=Solution(name="a", peer=False, op=HALF.name), crashes=0)
    ends, timed = iter([True, False, True, True, True]), []

    def time_case(graded, *_):
        timed.append(next(ends))
        worker.crashes += timed[-1]
        return {"verdict": "TIMEOUT", "reason": "late"} if timed[-1] else {}

    monkeypatch.setattr(rows, "time_case", time_case)
    graded = SimpleNamespace(worker=worker, solution=worker.solution)
    one = Measurement(sweep, {})
    told = [one._times(graded, "forward", None).get("reason") for _ in range(6)]
    assert told == ["late", None, "late", "late", *["not run again after 2 such ends: late"] * 2]
    assert len(timed) == 4
