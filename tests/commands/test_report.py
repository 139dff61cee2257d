"""The report of `study check`: the first failure at once, then when, where and how much fails."""

import random
import re
import sys
import tomllib
from collections import Counter
from dataclasses import replace

import pytest

from common import interfaces, ops, printable
from common.board import terminal
from common.commands import hint
from common.commands.answers import coverage
from common.commands.report import ROOM, TierReport, end
from common.errors import NOTES, Kind, Note
from common.grading.diagnosis import Diagnosis
from common.paths import COMMON
from common.source import Place
from common.verdicts import ENDED, VERDICTS, Verdict

ROPE = ops.load("rope")
CASES = [case for case in ROPE.cases("smoke") if not case.far_bytes]
BOTH = ("forward", "backward")


def few_heads(case):
    return case.h > 1 and all(case.shape)


def answers(
    report,
    fails=few_heads,
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
        right = [Verdict(*each, "PASSED") for each in several]
        report.add(ROPE, case, bad if fails(case) else right)
    return report


def lines(capsys):
    return capsys.readouterr().out.splitlines()


# --- failures -------------------------------------------------------------------------------------


def test_the_first_failure_is_shown_at_once_and_the_summary_says_when_it_fails(capsys):
    report = answers(TierReport(verbose=False))
    assert report.failed
    failing = [case for case in CASES if few_heads(case)]
    first = failing[0].name
    said = [f"a/rope {first} forward: INCORRECT_NUMERICAL", f"    output wrong: {first}"]
    assert lines(capsys) == said
    end(report.summaries("smoke", "cpu"))
    n, far = len(failing), sum(1 for _ in ROPE.cases("smoke")) - len(CASES)
    smallest = min(failing, key=lambda case: ROPE.work(case, "forward").bytes)
    assert lines(capsys) == [
        f"a/rope: FAILED in {n} of {len(CASES)} cases; {far} cases not run",
        f"  INCORRECT_NUMERICAL forward, {n} cases: fails where h > 1 ({n} of {n})",
        f"Repeat: nox -s check -- a/rope --case {smallest.name}",
    ], "cases without an element count on neither side"
    answers(TierReport(verbose=True))
    out = capsys.readouterr().out
    assert all(out.count(f"output wrong: {case.name}\n") == few_heads(case) for case in CASES)


def test_a_long_end_is_cut_to_what_matters_most(monkeypatch, capsys):
    monkeypatch.setattr("common.printable.columns", lambda: 60)
    monkeypatch.setattr("common.commands.report.columns", lambda: 60)
    monkeypatch.delenv("NO_COLOR", raising=False)
    reason = f"output wrong: {'every feature, ' * 20}{{}}"
    report = TierReport(verbose=False)
    for number, verdict in enumerate(["OUT_OF_BOUNDS", "RUNTIME_ERROR", "CRASHED", "TIMEOUT"]):
        for case in CASES[10 * number : 10 * number + 3]:
            names = "a/rope", "rope", case.name, "forward"
            report.add(ROPE, case, [Verdict(*names, verdict, reason.format(case.name))])
    lines(capsys)
    cause = Diagnosis("a/rope", ("forward",), ("a mistake",))
    end(report.summaries("smoke", "cpu", [cause]))
    shown = lines(capsys)
    text = "\n".join(shown)
    assert len(shown) <= ROOM and "\x1b[31mFAILED\x1b[0m in 12" in text
    assert "\x1b[31mRUNTIME_ERROR\x1b[0m forward, 3 cases" in text, "it is mended first"
    assert shown[-1].startswith("Repeat: nox -s check -- a/rope --case ")
    monkeypatch.setenv("NO_COLOR", "1")
    end(report.summaries("smoke", "cpu"))
    assert "\x1b" not in capsys.readouterr().out


@pytest.mark.parametrize("seed", range(20))
def test_the_numbers_of_an_end_add_up(seed, monkeypatch, capsys):
    """Directions fail for reasons and at places of their own; lines that are too many are cut."""
    dice, report = random.Random(seed), TierReport(verbose=False)
    monkeypatch.setattr("common.printable.columns", lambda: 60)
    monkeypatch.setenv("NO_COLOR", "1")
    verdicts = ["PASSED", *dice.sample([*VERDICTS][2:], dice.randint(1, 6))]
    for case in CASES:
        drawn = [(dice.choice(verdicts), Place("rope.py", dice.randint(1, 2))) for _ in BOTH]
        report.add(ROPE, case, [
            Verdict("a/rope", "rope", case.name, each, verdict, f"{each}, " * 9, places=(place,))
            for each, (verdict, place) in zip(BOTH, drawn, strict=True)
        ])  # fmt: skip
    lines(capsys)
    (summary,) = report.summaries("smoke", "cpu")
    end([summary])
    text = " ".join(map(str.strip, shown := lines(capsys)))
    assert sum(each.failed - each.again for each in summary.failures) == summary.failed
    told = re.findall(r"ward, (\d+) cases?(?:, (\d+) of them above)?", text)
    rest = sum(map(int, re.findall(r"and (\d+) cases? of other kinds", text)))
    assert sum(int(n) - int(again or 0) for n, again in told) + rest == summary.failed
    assert len(shown) <= ROOM


def test_a_line_at_fault_is_one_group_of_all_directions():
    report, at = TierReport(verbose=False), (Place("rope.py", 1),)
    for case in CASES[:4]:
        names = "a/rope", "rope", case.name
        faults = [Verdict(*names, each, "COMPILE_ERROR", each, places=at) for each in BOTH]
        report.add(ROPE, case, faults)
    (group,) = report.groups()
    assert (group.directions, len(group.failing)) == (BOTH, 4)


@pytest.mark.parametrize("verbose", [False, True])
def test_the_source_of_a_place_is_shown_once_unless_verbose(verbose, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("common.paths.CONTRIBUTORS", tmp_path)
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "rope.py").write_text("first()\nsecond()\n")
    report = TierReport(verbose)
    first, second = Place("rope.py", 1, "first()"), Place("rope.py", 2, "second()")
    for place, verdict in (first, "RUNTIME_ERROR"), (first, "COMPILE_ERROR"), (second, "CRASHED"):
        answers(report, verdict=verdict, places=(place,), reason=f"it fails, {place}, in {{}}")
    out = capsys.readouterr().out
    shown = Counter(re.findall(r"^    (rope\.py:\d): ", out, re.MULTILINE))
    assert shown.keys() == {"rope.py:1", "rope.py:2"}
    assert (set(shown.values()) == {1}) == (not verbose)
    assert "it fails, in " in out and "first(), in" not in out, "the excerpt has the place"
    assert ("forward: COMPILE_ERROR" in out) == verbose, "the fault was told in the interpreter"


def test_a_property_is_named_for_each_solution_and_direction(capsys):
    report = answers(TierReport(verbose=False))
    answers(report, lambda case: case.dtype == "bfloat16", name="b/rope")
    for direction in BOTH:
        name, expanded = f"{direction}/rope", lambda case: case.upstream == "expanded"
        answers(report, expanded, name=name, directions=(direction,))
    found = {each.solution: each.failures[0].property for each in report.summaries("smoke", "cpu")}
    assert "fails where h > 1" in found["a/rope"] and "dtype is bfloat16" in found["b/rope"]
    assert "upstream is expanded" in found["backward/rope"]
    assert "upstream" not in found["forward/rope"], "it explains no forward"


def test_a_cause_of_another_direction_than_the_lines_above_names_it(capsys):
    report = TierReport(verbose=False)
    for case in CASES:
        report.add(ROPE, case, [
            Verdict("a/rope", "rope", case.name, each, "INCORRECT_NUMERICAL", each) for each in BOTH
        ])  # fmt: skip
    lines(capsys)
    causes = [Diagnosis("a/rope", (each,), (f"{each} is mistaken",)) for each in BOTH]
    end(report.summaries("smoke", "cpu", causes))
    shown = [line.strip() for line in lines(capsys) if "likely" in line]
    assert shown == [
        "likely cause: forward is mistaken", "likely cause, backward: backward is mistaken",
    ]  # fmt: skip


def test_only_what_no_cause_and_no_property_explains_is_compared_with_other_cases():
    def one(**fields):
        return answers(TierReport(False), lambda case: case is CASES[7], **fields)

    def compared(report, *causes):
        found = []
        report.summaries("smoke", "cpu", causes, lambda names: str(found.append(names)))
        return found

    report = answers(answers(one(directions=BOTH), name="b/rope"), lambda case: True, name="c/rope")
    assert compared(report) == [("a/rope", CASES[7].name)]
    assert not compared(report, Diagnosis("a/rope", ("forward",), ("a mistake",)))
    assert not compared(one(after=())), "it depends on earlier calls"
    for verdict in (*ENDED, "COMPILE_ERROR"):
        assert not compared(one(verdict=verdict)), "its process is not asked again"


@pytest.mark.parametrize("verbose", [False, True])
def test_notes_are_shown_where_each_failure_is(verbose, capsys):
    notes = Note("CAUGHT", "a second one fails"), Note("OTHER_GRADIENTS", found=False)
    names = "a/rope", "rope", "7x2", "forward"
    failed = Verdict(*names, "NONDETERMINISTIC", "it differs", notes=notes)
    TierReport(verbose).add(ROPE, CASES[0], [failed])
    note = [f"a/rope 7x2 forward, a note: {NOTES['CAUGHT']}: a second one fails"] * verbose
    said = ["a/rope 7x2 forward: NONDETERMINISTIC", "    it differs"]
    assert lines(capsys) == [*note, *said]


def test_a_narrow_terminal_breaks_no_word(monkeypatch, capsys):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "80")
    name = "sbhd-8192x2x32x128-bfloat16-interleaved-paired"
    reason = f"output wrong in {name} and beside it, {name} and {name}: {{}}"
    answers(TierReport(verbose=False), reason=reason)
    shown = lines(capsys)
    assert max(map(len, shown)) <= 80
    assert sum(line.startswith("    ") and name in line for line in shown) >= 3


@pytest.fixture
def korean(monkeypatch):
    monkeypatch.setenv("LC_ALL", "ko")
    printable._sentences.cache_clear()
    yield
    monkeypatch.delenv("LC_ALL")
    monkeypatch.delenv("LANG", raising=False)
    printable._sentences.cache_clear()


def test_the_end_is_korean_where_the_terminals_language_is(korean, capsys):
    report = answers(TierReport(verbose=False))
    lines(capsys)
    end(report.summaries("smoke", "cpu"))
    n = sum(map(few_heads, CASES))
    assert lines(capsys)[0].startswith(f"a/rope: 케이스 {len(CASES)}개 중 {n}개 FAILED; ")
    for pattern, words in printable._sentences():
        assert len(re.findall(r"\{\d?\}", words)) == pattern.groups, "a value is lost"


def test_no_korean_sentence_is_hidden_by_an_earlier_one(korean):
    for text, words in tomllib.loads((COMMON / "korean.toml").read_text("utf-8")).items():
        english = text.replace("{}", "V")
        fitting = (said for each, said in printable._sentences() if each.fullmatch(english))
        assert next(fitting) == words, text


KOREAN = {
    "you/rope_qk: PASSED in 80 of 84 cases and 3 of 9 board cases; 2 not supported":
        "you/rope_qk: 케이스 84개 중 80개, 순위표 케이스 9개 중 3개 PASSED; 2개는 지원하지 않음",
    "you/rope: PASSED in 1 of 1 case and 3 of 9 board cases":
        "you/rope: 케이스 1개 중 1개, 순위표 케이스 9개 중 3개 PASSED",
    "not supported: does not take a (5), does not take b (2), ...":
        "지원하지 않음: a 옵션 없음 (5), b 옵션 없음 (2), ...",
    "a/rope has no place in packed (lacks 4 of 4 cases), core with backward (lacks 1 of 2 cases)":
        "a/rope: 순위가 없는 트랙: packed (케이스 4개 중 4개 없음), core의 backward (케이스 2개 중"
        " 1개 없음)",
    terminal.PLACE.format("a", "0.31 of the limit, place 5 of 6 in core; fetches 1.00 times what it"
                               " reads; 1 kernel launch and 2 torch operators a call"):
        "a forward, 모델이 예측한 H200 결과(오차 10% 안팎): 한계 대비 0.31, core 트랙에서 6개 중"
        " 5위; 읽는 바이트의 1.00배를 가져옴; 호출마다 커널 런치 1회, torch 연산자 2개",
    "X, 3 cases: a kernel does not compile for sm_90: no; fails where d is odd (3 of 4)":
        "X, 케이스 3개: sm_90용으로 컴파일되지 않는 커널: no; d 값이 홀수인 경우 실패 (4개 중 3개)",
    "X backward, 31 cases, 3 of them above, stored at a.py:45: fails only where d = 4 (31 of 36)":
        "X backward, 케이스 31개, 그중 3개는 위와 중복, a.py:45에서 저장: d = 4인 경우에만 실패"
        " (36개 중 31개)",
    "a passes with x 1 in place of 2 and y 3 in place of 4, or with z 5 in place of 6":
        "a: 이렇게 바꾸면 통과: x 2 대신 1, y 4 대신 3, 또는 z 6 대신 5",
    "9 smoke cases in 3.2 s, 5 of them mended. Next: x":
        "스모크 케이스 9개를 3.2초에 채점, 그중 5개가 고쳐짐. 다음: x",
}  # fmt: skip


@pytest.mark.parametrize("english", KOREAN)
def test_the_parts_of_a_line_are_korean_too(korean, english):
    assert printable.translated(english) == KOREAN[english]


def test_every_exercise_hint_and_mistake_has_a_korean_sentence(korean):
    path = hint.path()
    texts = [text for each in path.exercise for text in (each.title, each.task, *each.hints)]
    texts += [*path.measure.values(), *(each.hint for each in path.hint)]
    texts += [name for op in interfaces.names() for name in ops.load_mistakes(op)]
    assert not [text for text in texts if printable.translated(text.strip()) == text.strip()]


# --- coverage -------------------------------------------------------------------------------------


def both(case, *verdicts, reason="tomorrow", name="alice/rope", **fields):
    return [
        Verdict(name, "rope", f"case {case}", direction, verdict, reason, **fields)
        for direction, verdict in zip(BOTH, verdicts, strict=True)
    ]


NONE, FORWARD = ("UNSUPPORTED", "UNSUPPORTED"), ("PASSED", "UNSUPPORTED")
FAILED = ("CRASHED", "CRASHED")
SILENT = "answers no case: it leaves all 3 unsupported"
NO_GPU = "is not judged: 2 of 3 cases need a GPU, and none is here"


@pytest.mark.parametrize(
    ("answers", "needing", "line"),
    [([NONE] * 3, 0, SILENT), ([FORWARD, *[NONE] * 2], 0, None), ([FAILED, *[NONE] * 2], 0, None),
     ([NONE] * 3, 2, NO_GPU)],
    ids=["no answer", "one direction is an answer", "a failure is an answer", "no GPU"],
)  # fmt: skip
def test_who_answers_nothing_is_said(answers, needing, line):
    found = []
    for case, verdicts in enumerate(answers):
        found += both(case, *verdicts, kind=Kind.NO_GPU if case < needing else Kind.NONE)
    remarks = {"alice/rope": line} if line else {}
    assert coverage(found) == ({"alice/rope"} if line == SILENT else set(), remarks)
    bob = both(0, *NONE, name="bob/rope")
    assert "bob/rope" in coverage([*found, *bob])[0], "each counts for itself"


def test_the_end_counts_cases_and_the_kinds_of_notes(capsys):
    report = TierReport(verbose=False)
    for number, case in enumerate(CASES[:2]):
        report.add(ROPE, case, both(number, *NONE, reason="bshd"))
    end(report.summaries("smoke", "cpu"))
    assert report.failed
    remark, why = lines(capsys)
    assert remark == "alice/rope answers no case: it leaves all 2 unsupported"
    assert why == "  not supported: bshd (2)"
    passed = both(2, *FORWARD, reason="the output has no grad_fn")
    second = "OTHER_SECOND_DERIVATIVES"
    notes = Note("NO_KERNEL"), Note("CAUGHT", "it"), Note(second, "t")
    report.add(ROPE, CASES[2], [replace(verdict, notes=notes) for verdict in passed])
    tried = (Note(second, found=False),)
    report.add(ROPE, CASES[3], [replace(passed[0], case="case 3", notes=tried)])
    assert not report.failed
    end(report.summaries("smoke", "cpu"))
    assert lines(capsys) == [
        "alice/rope: PASSED in 2 of 4 cases, 1 of them forward alone; 2 not supported; "
        f"{sum(1 for _ in ROPE.cases('smoke')) - 4} cases not run",
        "  not supported: bshd (2), the output has no grad_fn (1)",
        f"  note: {NOTES['NO_KERNEL']} (1 case)",
        f"  note: {NOTES['CAUGHT']} (1 case)",
        f"  note: {NOTES[second]} (in 1 of the 2 cases tried; the mend is in CONTRIBUTING.md)",
    ]
