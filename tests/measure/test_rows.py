"""The rows that `check`, `bench` and `profile` get: of which cases, with what share of the time."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from common import ops
from common.grading.sweep import TooLarge
from common.measure import rows
from common.measure.rows import Measurement
from common.solutions import Solution
from tests.support.workers import graded_as

HALF = ops.load("rotate_half")
CASES = list(HALF.cases("smoke"))[:2]
SOLUTIONS = [Solution(Path(handle) / "rotate_half.py", "rotate_half") for handle in "abc"]


@pytest.fixture
def measurement(monkeypatch):
    """Return a function that makes a measurement whose solutions pass; note further answers."""

    def grade(op, cases, solutions, skip, repeats):
        further.append(repeats)
        for case in cases:
            for solution in solutions:
                if not skip(solution, case):
                    yield graded_as(op, case, solution, device="cuda")

    beside = SimpleNamespace(release=lambda: None)
    monkeypatch.setattr(rows, "Baseline", lambda *_: beside)
    monkeypatch.setattr(rows.baseline, "calibrate", lambda *_: {})
    workers, further = SimpleNamespace(baseline=lambda eager: None), []
    sweep = SimpleNamespace(device="cuda", grade=grade, supervisor=workers)
    digests = dict.fromkeys(SOLUTIONS, ("s", "h"))
    return lambda **how: (Measurement(sweep, digests, **how), further)


def test_a_case_that_does_not_fit_is_left_out_for_all_and_for_good(measurement, monkeypatch):
    """The rows before it stay; the board shows none of a case that is left out."""
    asked = []

    def time_case(graded, *_):
        asked.append((graded.solution.handle, graded.case))
        if graded.case == CASES[0] and graded.solution.handle == "b":
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return {"unmeasured": "no"}

    monkeypatch.setattr(rows, "time_case", time_case)
    made, _ = measurement()
    found = [*made.measure(SOLUTIONS, [(HALF, CASES)])]
    left = [one for one in found if isinstance(one, TooLarge)]
    assert left == [TooLarge(HALF, CASES[0], "out of memory")]
    assert [name for name, case in asked if case == CASES[0]] == ["a", "a", "b"]
    assert [name for name, case in asked if case == CASES[1]] == list("aabbcc")
    assert not [*made.measure(SOLUTIONS, [(HALF, CASES[:1])])], "another part of a run"


def test_who_ends_in_each_timed_case_is_timed_no_more(measurement, monkeypatch):
    """Timed last it may pass, since graded it does."""
    ends, timed = iter([True, False, True, True, True]), []

    def time_case(graded, *_):
        timed.append(next(ends))
        graded.worker.ends += timed[-1]
        return {"verdict": "TIMEOUT", "reason": "late"} if timed[-1] else {}

    monkeypatch.setattr(rows, "time_case", time_case)
    found = measurement()[0].measure(SOLUTIONS[:1], [(HALF, [CASES[0]] * 3)])
    reasons = [each.row.reason for both in found for each in both]
    refused = "while timed: not run again after 2 such ends: late"
    assert reasons == ["while timed: late", "", *["while timed: late"] * 2, *[refused] * 2]
    assert len(timed) == 4
