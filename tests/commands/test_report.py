"""The report of `study check`: the first failure at once, then when, where and how much fails."""

from __future__ import annotations

import re
import sys
from collections import Counter
from dataclasses import replace

import pytest

from common import ops, solutions
from common.commands.answers import SHOWN, coverage
from common.commands.progress import Progress
from common.commands.report import TierReport
from common.errors import Kind
from common.grading.sweep import Sweep
from common.paths import ROOT
from common.verdicts import ENDED, Picture, Verdict

ROPE = ops.load("rope")
CASES = [case for case in ROPE.cases("smoke") if not case.far_bytes]
PICTURE = Picture("position", "feature", (1, 1), ("··", "██"), ())


def answers(
    report,
    fails=lambda case: True,
    name="a/rope",
    reason="output wrong: {}",
    verdict="INCORRECT_NUMERICAL",
    directions=("forward",),
    **fields,
):
    """Add an answer to each case, which fails where `fails` says so; return the report."""
    for case in CASES:
        several = [(name, "rope", case.name, direction) for direction in directions]
        said = reason.format(case.name)
        bad = [Verdict(*each, verdict, said, **fields) for each in several]
        report.add(
            ROPE, case, bad if fails(case) else [Verdict(*each, "PASSED") for each in several]
        )
    return report


def few_heads(case):
    return case.h > 1 and all(case.shape)


def test_what_does_not_compile_takes_the_place_of_the_interpreters_verdict(capsys):
    report = answers(TierReport("smoke", verbose=False), few_heads)
    capsys.readouterr()
    for wrong in (False, True):
        case = next(case for case in CASES if few_heads(case) == wrong)
        names = "a/rope", "rope", case.name, "forward"
        report.add(ROPE, case, [Verdict(*names, "COMPILE_ERROR", "arange's range")])
        if not wrong:
            assert capsys.readouterr().out.splitlines() == [
                f"a/rope {case.name} forward: COMPILE_ERROR, PASSED in the interpreter",
                "    arange's range",
            ]
    report.end()
    out, failing = capsys.readouterr().out, sum(map(few_heads, CASES))
    assert f"INCORRECT_NUMERICAL in {failing - 1} of {len(CASES)} cases" in out
    assert f"{failing - 1} INCORRECT_NUMERICAL" in out and "2 COMPILE_ERROR" in out


def test_the_first_failure_is_shown_at_once_and_the_summary_says_when_it_fails(capsys):
    report = answers(TierReport("smoke", verbose=False), few_heads)
    assert report.failed
    first = next(case.name for case in CASES if few_heads(case))
    assert capsys.readouterr().out.splitlines() == [
        f"a/rope {first} forward: INCORRECT_NUMERICAL",
        f"    output wrong: {first}",
    ]
    report.end()
    failing = [case for case in CASES if few_heads(case)]
    passing = [case for case in CASES if case.h == 1]
    smallest = sorted(failing, key=lambda case: ROPE.work(case, "forward").bytes)[:SHOWN]
    n, m = len(failing), len(passing)
    assert capsys.readouterr().out.splitlines() == [
        f"a/rope forward: INCORRECT_NUMERICAL in {n} of {len(CASES)} cases",
        f"    fails where h > 1 ({n} of {n}), passes where h = 1 ({m} of {m})",
        *(f"    {case.name}: output wrong: {case.name}" for case in smallest),
        f"a/rope, smoke: {n} INCORRECT_NUMERICAL, {len(CASES) - n} PASSED of {len(CASES)} cases"
        " (--verbose shows each)",
    ], "cases without an element count on neither side"


def test_each_failure_is_shown_once_where_all_are_asked_for(capsys):
    answers(TierReport("smoke", verbose=True), few_heads).end()
    out = capsys.readouterr().out
    assert all(out.count(f"output wrong: {case.name}\n") == few_heads(case) for case in CASES)
    assert "fails where h > 1" in out and "--verbose" not in out


@pytest.mark.parametrize(("verbose", "few"), [(False, True), (True, False)])
def test_the_source_of_a_place_is_shown_once(verbose, few, tmp_path, monkeypatch, capsys):
    """Every group of failures refers to it, with elements of its own."""
    monkeypatch.setattr("common.paths.CONTRIBUTORS", tmp_path)
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "rope.py").write_text("first()\nsecond()\n")
    report = TierReport("smoke", verbose)
    for line, verdict in (("1 of rope.py: first()", "OUT_OF_BOUNDS"),
                          ("1 of rope.py: first()", "RUNTIME_ERROR"),
                          ("2 of rope.py: second()", "CRASHED")):  # fmt: skip
        answers(report, few_heads, reason=f"{{}} reads x, line {line}", verdict=verdict)
    report.end()
    shown = Counter(re.findall(r"^    (rope\.py:\d)$", capsys.readouterr().out, re.MULTILINE))
    assert shown.keys() == {"rope.py:1", "rope.py:2"}
    assert (set(shown.values()) == {1}) == few


def test_a_file_that_does_not_import_is_said_once(capsys):
    both = ("forward", "backward")
    report = TierReport("smoke", verbose=False)
    answers(report, reason="no module named x", verdict="COMPILE_ERROR", directions=both).end()
    assert capsys.readouterr().out.splitlines() == [
        f"a/rope {CASES[0].name} forward and backward: COMPILE_ERROR",
        "    no module named x",
        f"a/rope, smoke: {len(CASES)} COMPILE_ERROR of {len(CASES)} cases (--verbose shows each)",
    ]


def test_reasons_that_differ_in_a_count_alone_are_the_same():
    report = TierReport("smoke", verbose=False)
    for number, case in enumerate(CASES):
        said = "in part" if number > 40 else "every element"
        names = "a/rope", "rope", case.name, "forward", "UNWRITTEN_OUTPUT"
        report.add(ROPE, case, [Verdict(*names, f"{said} ({number} of {number})", group=said)])
    (group,) = report.groups()
    assert {verdict.group for verdict in group.smallest} == {"every element", "in part"}


def test_what_neither_cause_nor_property_explains_is_compared_with_other_cases():
    report = TierReport("smoke", verbose=False)
    answers(report, lambda case: case is CASES[7])
    answers(report, few_heads, name="b/rope")
    answers(report, name="c/rope")
    (group,) = report.unexplained([])
    assert (group.solution, group.by_size[0].case) == ("a/rope", CASES[7]), (
        "b's has a property, and c's needs none"
    )
    assert not list(report.unexplained([("a/rope", "forward")])), "its cause is known"
    dependent = Verdict("a/rope", "rope", CASES[7].name, "forward", "INCORRECT_DTYPE", after=())
    report.add(ROPE, CASES[7], [dependent])
    assert not list(report.unexplained([])), "it depends on earlier calls"

    for verdict in sorted(ENDED | {"COMPILE_ERROR"}):
        report = answers(TierReport("smoke", False), lambda case: case is CASES[7], verdict=verdict)
        assert not list(report.unexplained([])), "its process is not asked again"


def test_a_property_is_named_for_each_solution_and_direction(capsys):
    report = answers(TierReport("smoke", verbose=False), few_heads)
    answers(report, lambda case: case.dtype == "bfloat16", name="b/rope")
    for direction in ("forward", "backward"):
        name, expanded = f"{direction}/rope", lambda case: case.upstream == "expanded"
        answers(report, expanded, name=name, directions=(direction,))
    report.end()
    first, second, *others = capsys.readouterr().out.split(" forward: INCORRECT_NUMERICAL in ")[1:]
    assert "fails where h > 1" in first and "fails where dtype is bfloat16" in second
    assert "".join(others).count("fails where upstream is expanded") == 1, "it explains no forward"


def test_the_share_that_passes_is_said_with_the_commonest_reasons():
    report = answers(TierReport("smoke", verbose=False), lambda case: False)
    assert report.share == f"{len(CASES)} of {len(CASES)} cases"
    reasons = ["thd", *["interleaved"] * 3, *["does not take cp_size"] * 2, "d < 8"]
    for case, reason in zip(CASES, reasons, strict=False):
        verdict = Verdict("a/rope", "rope", case.name, "forward", "UNSUPPORTED", reason)
        report.add(ROPE, case, [verdict])
    why = "interleaved, does not take cp_size, thd, ..."
    assert report.share == f"{len(CASES) - 7} of {len(CASES)} cases; 7 not supported: {why}"


@pytest.mark.parametrize("asked", [False, True])
def test_a_picture_follows_where_it_is_asked_for(asked, capsys):
    answers(TierReport("smoke", verbose=False, picture=asked), few_heads, picture=PICTURE).end()
    assert ("position 0 ··\n" in capsys.readouterr().out) == asked


def narrow(monkeypatch):
    """Make stdout and stderr a terminal of 80 columns."""
    for stream in (sys.stdout, sys.stderr):
        monkeypatch.setattr(stream, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")


def test_a_picture_stands_above_a_bar_as_each_line_does(monkeypatch, capsys):
    narrow(monkeypatch)
    report = TierReport("smoke", verbose=False, picture=True)
    with Progress("cases", 2):
        answers(report, few_heads, picture=PICTURE)
    out, err = capsys.readouterr()
    assert out == "" and "position 0" in err, "what passed the bar by left a remnant of it"


def test_a_narrow_terminal_breaks_no_word(monkeypatch, capsys):
    narrow(monkeypatch)
    name = "sbhd-8192x2x32x128-bfloat16-interleaved-paired"
    reason = f"output wrong in {name} and beside it, {name} and {name}: {{}}"
    answers(TierReport("smoke", verbose=False), few_heads, reason=reason).end()
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert sum(line.startswith("    ") and name in line for line in lines) >= 3


# --- with solutions -------------------------------------------------------------------------------


@pytest.mark.slow
def test_what_is_left_out_is_named_with_the_cases_that_have_it(fork_server, capsys):
    everyone = solutions.discover(ROOT / "tests" / "corpus" / "wrong")
    (solution,) = (each for each in everyone if each.handle == "dropped_pass_through")
    report = TierReport("smoke", verbose=False, picture=True)
    cases = [case for case in CASES if case.h < 4 and case.d < 60
             and case.track_of("forward") not in ("extended", "interleaved")]  # fmt: skip
    with Sweep("cpu", server=fork_server) as sweep:
        for graded in sweep.grade(ROPE, cases, [solution]):
            report.add(ROPE, graded.case, list(graded.verdicts.values()))
    report.end()
    out = capsys.readouterr().out
    assert re.search(
        r"rope forward: INCORRECT_NUMERICAL in \d+ of \d+ cases\n"
        r"    fails where d ≠ d2 \((\d+) of \1\), passes where d = d2 \((\d+) of \2\)\n"
        r"    \S+: output wrong: features .* \(the unrotated features\)",
        out,
    )
    assert "position 0 " + 12 * "·" + 7 * "█" in out, "and the picture shows it"


# --- coverage -------------------------------------------------------------------------------------


def both(solution: str, case: int, *verdicts: str, reason: str = "tomorrow") -> list[Verdict]:
    directions = zip(("forward", "backward"), verdicts, strict=True)
    return [Verdict(solution, "rope", f"case {case}", d, v, reason) for d, v in directions]


NONE = ("UNSUPPORTED", "UNSUPPORTED")
FORWARD = ("PASSED", "UNSUPPORTED")
FAILED = ("CRASHED", "CRASHED")
SILENT = "alice/rope answers no case: it leaves all 3 unsupported"
FEW = "alice/rope answers 1 of 11 cases, fewer than a tenth"


@pytest.mark.parametrize(
    ("answers", "line"),
    [([NONE] * 3, SILENT), ([FORWARD, *[NONE] * 10], FEW), ([FAILED, *[NONE] * 10], FEW),
     ([FORWARD, *[NONE] * 9], None)],
    ids=["no answer", "one direction is an answer", "a failure is an answer", "a tenth"],
)  # fmt: skip
def test_who_answers_nothing_or_little_is_said(answers, line):
    found = [verdict for case, verdicts in enumerate(answers)
             for verdict in both("alice/rope", case, *verdicts)]  # fmt: skip
    assert coverage(found) == ({"alice/rope"} if line == SILENT else set(), [line] * bool(line))
    bob = both("bob/rope", 0, *NONE)
    assert "bob/rope" in coverage([*found, *bob])[0], "each counts for itself"


@pytest.mark.parametrize("needing", range(3))
def test_who_needs_a_gpu_answers_nothing_and_has_not_failed(needing):
    kinds = [Kind.NO_GPU] * needing + [Kind.NONE] * (3 - needing)
    found = [replace(verdict, kind=kind) for case, kind in enumerate(kinds)
             for verdict in both("alice/rope", case, *NONE)]  # fmt: skip
    line = f"alice/rope is not judged: {needing} of 3 cases need a GPU, and none is here"
    assert coverage(found) == ((set(), [line]) if needing else ({"alice/rope"}, [SILENT]))


def test_check_fails_without_an_answer_and_counts_cases_not_directions(capsys):
    report = TierReport("smoke", verbose=False)
    for number, case in enumerate(CASES[:2]):
        report.add(ROPE, case, both("alice/rope", number, *NONE, reason="bshd"))
    report.end()
    assert report.failed
    assert "alice/rope answers no case: it leaves all 2 unsupported" in capsys.readouterr().out
    report.add(ROPE, CASES[2], both("alice/rope", 2, *FORWARD, reason="the output has no grad_fn"))
    report.end()
    out = capsys.readouterr().out
    assert not report.failed
    assert (
        report.share == "1 of 3 cases; 3 not supported or in part: bshd, the output has no grad_fn"
    )
    assert "smoke: 2 UNSUPPORTED, 1 forward PASSED and backward UNSUPPORTED of 3 cases\n" in out
    assert "    unsupported: bshd (2 cases)\n" in out
    assert "    unsupported: the output has no grad_fn (1 case)\n" in out


def test_notes_are_counted_by_their_kind_and_told_with_the_share(capsys):
    """In a case with both directions a note counts once; its details, after a colon, do not."""
    report = TierReport("smoke", verbose=False)
    for number, case in enumerate(CASES[:3]):
        notes = (f"no kernel: {number}", *["caught: it"] * (number == 1))
        passed = both("alice/rope", number, "PASSED", "PASSED")
        report.add(ROPE, case, [replace(verdict, notes=notes) for verdict in passed])
    report.end()
    out = capsys.readouterr().out
    assert "    note: no kernel (3 cases)\n    note: caught (1 case)\n" in out
    assert report.share == "3 of 3 cases; but no kernel (3 cases), caught (1 case)"


@pytest.mark.parametrize("verbose", [False, True])
def test_check_shows_notes_and_what_was_asked_where_it_shows_each_failure(verbose, capsys):
    failed = Verdict(
        "a/rope", "rope", "7x2", "forward", "NONDETERMINISTIC", "it differs",
        notes=("a second one fails",), plan="forward of first\ncomparison of first",
    )  # fmt: skip
    TierReport("smoke", verbose).add(ROPE, CASES[0], [failed])
    note = ["a/rope 7x2 forward, a note: a second one fails"] * verbose
    asked = ["    asked forward of first", "    asked comparison of first"] * verbose
    said = ["a/rope 7x2 forward: NONDETERMINISTIC", "    it differs"]
    assert capsys.readouterr().out.splitlines() == [*note, *said, *asked]
