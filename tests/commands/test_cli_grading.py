"""`study grade`, `check` and `bench` on a contributor's folder, from the command to its results."""

import json
import shutil

import pytest

from common.records import runs
from tests.support.study import FOR_CUDA, RIGHT, UNSUPPORTED, WRONG


@pytest.mark.slow
def test_check_says_what_is_wrong_and_where(study, by_hand):
    by_hand("alice", WRONG)
    ran = study("check", "alice")
    assert ran.code == 1, ran.err
    assert "INCORRECT_NUMERICAL" in ran.out
    assert "output wrong: features 0 to 3 of 8 (the first half), every first index" in ran.out
    assert "at [0, 0, 0, 0] expected " in ran.out
    assert "forward: INCORRECT_NUMERICAL in every case that has an element" in ran.out
    assert "rotate_half: core" not in ran.out, "the board's cases would repeat it"
    told = "alice/rotate_half forward and backward: likely cause: nothing is negated"
    assert ran.out.splitlines()[-1].startswith(told), "the cause is the last line"
    case = "10x2x4x8-float32"
    ran = study("check", "alice", "--last-failed", "-x")
    assert ran.code == 1 and ran.out.splitlines()[-1].endswith(": 1 INCORRECT_NUMERICAL of 1 case")
    ran = study("check", "alice", "--case", case)
    assert ran.code == 1 and ran.out.startswith(f"alice/rotate_half {case} forward: INCORRECT")
    assert f"no case {case}4" in study("check", "alice", "--case", f"{case}4").err


@pytest.mark.slow
def test_grade_writes_every_verdict_and_fails_where_a_contributor_does(graded_here, tmp_path):
    file = tmp_path / "verdicts.json"
    ran = graded_here("alice", WRONG, "--sample", 8, "--json", file)
    assert ran.code == 1, ran.err
    rows = json.loads(file.read_text())
    assert len(rows) == 2 * 8
    fields = {"solution", "op", "case", "direction", "verdict", "reason"}
    assert all(fields <= row.keys() for row in rows)
    assert {row["direction"] for row in rows} == {"forward", "backward"}
    assert {(row["solution"], row["op"]) for row in rows} == {("alice/rotate_half", "rotate_half")}
    failures = [row for row in rows if row["verdict"] not in ("PASSED", "UNSUPPORTED")]
    assert failures
    assert all(row["reason"] for row in failures)
    assert not any("picture" in row for row in rows), "it is for the terminal"
    assert len(ran.out.splitlines()) == 8


def test_what_is_unsupported_fails_nothing(graded_here, tmp_path):
    file = tmp_path / "verdicts.json"
    ran = graded_here("bob", UNSUPPORTED, "--sample", 2, "--json", file)
    assert ran.code == 0, ran.err
    assert {row["verdict"] for row in json.loads(file.read_text())} == {"UNSUPPORTED"}
    assert "answers no case" not in ran.out, "a sample may lack what it answers"


def test_a_solution_that_answers_no_case_has_failed(graded_here):
    ran = graded_here("bob", UNSUPPORTED)
    assert ran.code == 1
    assert ran.out.splitlines()[-1].startswith("bob/rotate_half answers no case: it leaves all ")


@pytest.mark.slow
def test_a_solution_for_cuda_alone_is_not_judged_and_has_not_failed(study, by_hand):
    by_hand("alice", FOR_CUDA)
    told = "alice/rotate_half is not judged: 60 of 77 cases need a GPU, and none is here"
    for ran in (study("check", "alice"), study("grade", "--only", "alice")):
        assert ran.code == 0, ran.err
        assert ran.out.splitlines()[-1] == told
        assert "half is registered for CUDA alone, and no GPU is here" in ran.out


@pytest.mark.slow
def test_a_folder_added_by_hand_is_benched_and_on_the_board(study, repository, by_hand):
    by_hand("alice", RIGHT)
    ran = study("bench", "--only", "alice")
    assert ran.code == 0, ran.err
    (record,) = runs.files(repository / "results" / "cpu")
    end = json.loads(record.read_text().splitlines()[-1])
    assert end["kind"] == "end"
    assert end["seconds"] > 0
    results = runs.read(record.parent)
    assert results.finished
    assert {row.solution for row in results.rows} == {"alice/rotate_half"}
    assert {(r.track, r.verdict) for r in results.rows} == {
        ("core", "PASSED"),
        ("extended", "UNSUPPORTED"),
    }
    ran = study("leaderboard")
    shutil.rmtree(repository / "results")
    assert ran.code == 0, ran.err
    assert "alice/rotate_half" in ran.out
    assert "right, in plain torch" in ran.out
    assert "Nothing was timed" in ran.out
    assert not (repository / "LEADERBOARD.md").exists()
