"""`study grade`, `check` and `bench` on a contributor's folder, from the command to its results."""

import json
import re
import shutil

import msgspec
import pytest

from common.commands.result import Anything, FailingCases, Judged, Listed, Placed, Summary
from common.paths import ROOT
from common.records import runs
from common.verdicts import Difference
from tests.support.study import FOR_CUDA, RIGHT, UNSUPPORTED, WRONG

KNOWN = list[Anything]


@pytest.mark.slow
def test_check_says_what_is_wrong_and_where(study, by_hand):
    """Of a handle of any script, too."""
    by_hand("김철수", WRONG)
    ran = study("check", "김철수")
    assert ran.code == 1, ran.err
    assert "output wrong: features 0 to 3 of 0 to 7 (the first half), every first index" in ran.out
    assert "at [0, 0, 0, 0] expected " in ran.out
    told = r"INCORRECT_NUMERICAL forward, \d+ cases: fails in every case that has an element"
    assert re.search(told + r"\n  likely cause: nothing is negated", ran.out)
    assert "rotate_half: core" not in ran.out, "the board's cases would repeat it"
    repeat = "Repeat: nox -s check -- 김철수/rotate_half --case "
    case = ran.out.splitlines()[-1].removeprefix(repeat)
    ran = study("check", "김철수", "--last-failed", "-x")
    assert ran.code == 1 and "rotate_half: FAILED in 1 of 1 case; 76 cases not run" in ran.out
    ran = study("check", "김철수", "--case", case)
    assert ran.code == 1 and ran.out.startswith(f"김철수/rotate_half {case} forward: INCORRECT")
    assert f"no case {case}4 of rotate_half: " in study("check", "김철수", "--case", f"{case}4").err


@pytest.mark.slow
def test_a_shape_of_ones_own_is_graded_and_modelled_beside_the_peers(
    study, by_hand, repository, tmp_path
):
    by_hand("alice", RIGHT)
    file, case = tmp_path / "check.json", "4096x2048-bfloat16"
    ran = study("check", "alice", "--case", case, "--json", file)
    summary, *rows = msgspec.json.decode(file.read_bytes(), type=KNOWN)
    assert summary.stands_for == case and any(row.twin for row in rows)
    timed = [row for row in rows if row.gpu and row.direction == "forward"]
    assert {row.solution for row in timed} >= {"alice/rotate_half", "eager/rotate_half"}
    facts = {(row.case, row.modelled, row.bytes) for row in timed}
    assert facts == {(case, "NVIDIA H200", 2 * 2 * 4096 * 2048)}
    assert ran.code == 0, ran.err
    assert "alice/rotate_half: PASSED in 1 of 1 board case" in ran.out
    assert "rotate_half: 4096x2048-bfloat16, modelled for NVIDIA H200" in ran.out
    first = "rotate_half 4096x2048-bfloat16 forward: alice/rotate_half is modelled as fastest, "
    second = "the best of the installed peers, (eager/rotate_half), takes "
    assert first + "about " in ran.out and second in ran.out
    ran = study("bench", "--only", "alice", "--case", "4096x1024-float32")
    assert ran.code == 0, ran.err
    assert "rotate_half: 4096x1024-float32, modelled for NVIDIA H200" in ran.out
    assert not (repository / "results" / "cpu").exists(), "it is recorded nowhere"


@pytest.mark.slow
def test_grade_writes_every_verdict_and_fails_where_a_contributor_does(study, by_hand, tmp_path):
    by_hand("alice", WRONG)
    file = tmp_path / "verdicts.json"
    ran = study("grade", "--only", "alice", "--sample", 8, "--json", file)
    assert ran.code == 1 and len(ran.out.splitlines()) == 8, ran.err
    rows = json.loads(file.read_text())
    assert {type(each) for each in msgspec.json.decode(file.read_bytes(), type=KNOWN)} == {Judged}
    assert {row["direction"] for row in rows} == {"forward", "backward"}
    assert {(row["solution"], row["op"]) for row in rows} == {("alice/rotate_half", "rotate_half")}
    failures = [row for row in rows if row["verdict"] not in ("PASSED", "UNSUPPORTED")]
    assert failures and all(row["reason"] for row in failures)


@pytest.mark.slow
def test_objects_are_of_the_schema_that_the_page_describes(study, by_hand, recorded):
    """Each command writes all of its objects, and nothing else to stdout."""
    kernel = (ROOT / "contributors/_template/rotate_half.py").read_text()
    by_hand("alice", kernel.replace("tl.store(y + lanes, -x2", "tl.store(y + lane, -x2"))
    by_hand("bob", RIGHT.replace("-x2", "x2"))
    found = {}
    for words in ("check alice", "check bob", "list --op rotate_half"):
        ran = study(*words.split(), "--json", "-")
        found[words] = [msgspec.json.decode(line, type=Anything) for line in ran.out.splitlines()]
        assert found[words] and (ran.err.strip() or "list" in words), words
    summary, *verdicts = found["check alice"]
    group = summary.failures[0]
    assert (group.verdict, group.place.code) == ("COMPILE_ERROR", "lane")
    assert summary.failed == len({each.case for each in verdicts}) > 10
    summary, *verdicts = found["check bob"]
    assert summary.failures[0].cause == "nothing is negated: [x2, x1]" and summary.failures[0].hint
    wrong = verdicts[0].difference
    assert wrong.result == "output" and wrong.expected == -wrong.got and wrong.elements
    assert {each.solution for each in found["list --op rotate_half"]} > {"alice/rotate_half"}
    assert "leave --hint and --watch out" in study("check", "bob", "--json", "-", "--watch").err
    places = msgspec.json.decode(study("leaderboard", "--json").out, type=KNOWN)
    assert {type(each) for each in places} == {Placed}


def test_the_page_on_json_names_every_field():
    page = (ROOT / "docs" / "json.md").read_text()
    ours = (Listed, Judged, Difference, Summary, FailingCases, Placed)
    fields = {name for each in ours for name in each.__struct_fields__}
    assert not [name for name in sorted(fields) if f"`{name}`" not in page]


@pytest.mark.slow
def test_a_solution_fails_if_it_answers_no_case_of_a_complete_tier(study, by_hand):
    by_hand("alice", UNSUPPORTED)
    ran = study("grade", "--only", "alice", "--sample", 2)
    assert ran.code == 0 and "answers no case" not in ran.out, "a sample may lack what it answers"
    ran = study("grade", "--only", "alice")
    assert ran.code == 1
    assert ran.out.splitlines()[-1].startswith("alice/rotate_half answers no case: it leaves all ")


@pytest.mark.slow
def test_a_solution_for_cuda_alone_is_not_judged_and_has_not_failed(study, by_hand):
    by_hand("alice", FOR_CUDA)
    ran = study("check", "alice")
    assert ran.code == 0, ran.err
    assert "half is registered for CUDA alone, and no GPU is here" in ran.out
    last = "alice/rotate_half is not judged: 60 of 77 cases need a GPU, and none is here"
    assert ran.out.splitlines()[0] == last


@pytest.mark.slow
def test_a_folder_added_by_hand_is_benched_and_on_the_board(study, repository, by_hand):
    by_hand("alice", RIGHT)
    ran = study("bench", "--only", "alice")
    assert ran.code == 0, ran.err
    (record,) = runs.files(repository / "results" / "cpu")
    end = json.loads(record.read_text().splitlines()[-1])
    assert end["kind"] == "end" and end["seconds"] > 0
    results = runs.read(record.parent)
    assert results.finished
    assert {(r.solution, r.track, r.verdict) for r in results.rows} == {
        ("alice/rotate_half", "core", "PASSED"),
        ("alice/rotate_half", "extended", "UNSUPPORTED"),
    }
    assert "nothing is missing" in study("bench", "--only", "alice", "--missing").out
    ran, brief = study("leaderboard", "--only", "alice"), study("leaderboard")
    shutil.rmtree(repository / "results")
    assert brief.code == 0 and "all tables: nox -s leaderboard -- --op OP" in brief.out
    assert ran.code == 0, ran.err
    assert "alice/rotate_half" in ran.out and "right, in plain torch" in ran.out
    assert "Nothing was timed" in ran.out
    assert not (repository / "LEADERBOARD.md").exists()
