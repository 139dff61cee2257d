"""A solution that answers no case of a tier has failed, and one that answers few is told so."""

from __future__ import annotations

import pytest

from common import ops
from common.commands.report import Coverage, TierReport
from common.verdicts import Verdict


def both(solution: str, case: int, *verdicts: str, reason: str = "tomorrow") -> list[Verdict]:
    directions = zip(("forward", "backward"), verdicts, strict=True)
    return [Verdict(solution, "rope", f"case {case}", d, v, reason) for d, v in directions]


def cover(*answers: tuple[str, str]) -> Coverage:
    coverage = Coverage()
    for case, verdicts in enumerate(answers):
        coverage.add(both("alice/rope", case, *verdicts))
    return coverage


NONE = ("UNSUPPORTED", "UNSUPPORTED")
FORWARD = ("PASSED", "UNSUPPORTED")
FAILED = ("CRASHED", "CRASHED")


def test_no_answer_at_all():
    coverage = cover(*[NONE] * 3)
    assert coverage.silent == {"alice/rope"}
    assert list(coverage.lines()) == ["alice/rope answers no case: it leaves all 3 unsupported"]


@pytest.mark.parametrize("answer", [FORWARD, FAILED])
def test_one_direction_or_a_failure_is_an_answer(answer):
    coverage = cover(answer, *[NONE] * 10)
    assert not coverage.silent
    assert list(coverage.lines()) == ["alice/rope answers 1 of 11 cases, fewer than a tenth"]


def test_a_tenth_is_not_few():
    assert not list(cover(FORWARD, *[NONE] * 9).lines())


def test_each_solution_counts_for_itself():
    coverage = cover(FORWARD)
    coverage.add(both("bob/rope", 0, *NONE))
    assert coverage.silent == {"bob/rope"}


def reported(*several: list[Verdict]) -> TierReport:
    op = ops.load("rope")
    report = TierReport("smoke", verbose=False)
    for case, found in zip(op.cases("smoke"), several, strict=False):
        report.add(op, case, found)
    report.end()
    return report


def test_check_fails_without_an_answer(capsys):
    report = reported(*(both("alice/rope", case, *NONE) for case in range(2)))
    assert report.failed
    assert "alice/rope answers no case: it leaves all 2 unsupported" in capsys.readouterr().out


def test_check_counts_cases_not_directions(capsys):
    report = reported(
        *(both("alice/rope", case, *NONE, reason="bshd") for case in range(2)),
        both("alice/rope", 2, *FORWARD, reason="the output has no grad_fn"),
    )
    out = capsys.readouterr().out
    assert not report.failed
    assert "    unsupported: bshd (2 cases)\n" in out
    assert "    unsupported: the output has no grad_fn (1 case)\n" in out
