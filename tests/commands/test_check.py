"""What `study check` refuses, compiles again and says last."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import NamedTuple

from common import ops
from common.commands import grader, result
from common.solutions import Solution
from tests.support.records import row
from tests.support.study import RIGHT
from tests.support.workers import HALF, written


def test_a_folder_that_imports_this_repository_is_named_and_not_graded(study, by_hand, repository):
    by_hand("alice", "import torch\nfrom helpers import tiles\n" + RIGHT)
    folder = repository / "contributors" / "alice"
    (folder / "helpers").mkdir()
    (folder / "helpers" / "tiles.py").write_text("from common.ops.rope import reference\n")
    (folder / "broken.py").write_text("def f(:\n")
    ran = study("check", "alice")
    (line,) = ran.out.splitlines()
    assert line.startswith("alice/helpers/tiles.py imports common.ops.rope.reference: a folder")
    assert ran.code == 1


def test_a_case_is_found_beside_an_op_that_is_invalid(tmp_path, monkeypatch, capsys):
    op = replace(ops.load("rope"), reference=lambda: None)
    load = ops.load
    monkeypatch.setattr(ops, "load", lambda name: op if name == "rope" else load(name))
    folder = [Solution(tmp_path / "a" / f"{op}.py", op) for op in ("rope", "rotate_half")]
    case = next(ops.load("rotate_half").cases("smoke")).name
    named = grader.Grader(SimpleNamespace(device="cpu"), None).named(case, folder)
    assert ("a/rotate_half", case) in named.cases
    assert "common/ops/rope.py" in capsys.readouterr().err


def lacking(track, *reasons):
    """The rows of a track with backward: one passes forward, and one for each reason."""
    made = partial(row, solution="alice/rope", track=track)
    return [made(case=f"{track}-0")] + [
        made(verdict="UNSUPPORTED", case=f"{track}-{n}", direction="backward", reason=reason)
        for n, reason in enumerate(reasons)
    ]


def test_a_folder_is_told_what_each_track_lacks_and_a_place_leads_to_bench():
    found = [*lacking("standard", "no grad_fn", "no grad_fn"), *lacking("packed", "thd", "cp")]
    *gaps, last = result.conclusion(found, "2 of 6 cases")
    assert gaps == [
        "alice/rope has no place in standard (lacks 2 of 3 rows): no grad_fn",
        "alice/rope has no place in packed (lacks 2 of 3 rows): thd; cp",
    ]
    assert last.startswith("No track ranks alice, although all that is answered is right")
    gaps = [*lacking("partial", "no grad_fn"), *lacking("core", "no grad_fn")]
    gap, last = result.conclusion([*lacking("standard"), *gaps], "3 of 5 cases")
    assert "no place in partial (lacks 1 of 2 rows), core (lacks 1 of 2 rows): no grad_fn" in gap
    assert last.endswith("Next: nox -s bench leaderboard -- --only alice")


class Graded(NamedTuple):
    solution: Solution
    case: SimpleNamespace
    verdicts: dict


def test_interpreted_cases_come_first_and_those_that_do_not_compile_again(tmp_path, monkeypatch):
    solution = Solution(tmp_path / "rope.py", "rope")
    graded = [Graded(solution, SimpleNamespace(name=n), {"forward": "PASSED"}) for n in range(3)]
    refused = graded[1]._replace(verdicts={"forward": "COMPILE_ERROR"})
    futures = {case: Future() for case in (0, 1, 2)}
    monkeypatch.setattr(grader.Grader, "graded", lambda _, asked: (case for case in asked))
    compiler = SimpleNamespace(submit=lambda case: futures[case.case.name])
    found = grader.Grader(None, compiler).smoke_cases(graded)
    assert [next(found) for _ in range(3)] == graded, "none waits for a compilation"
    for future, judged in zip(futures.values(), [graded[0], refused, graded[2]], strict=True):
        future.set_result(judged)
    assert list(found) == [refused]
    futures[0] = Future()
    found = grader.Grader(None, compiler).smoke_cases(graded[:1])
    next(found)
    found.close()
    assert futures[0].cancelled(), "compilation ends with the cases"


def test_a_late_solution_is_named_with_its_case_and_line_once(
    fork_server, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr("common.grading.worker.LATE", 0.1)
    line = "import time; end = time.process_time() + 1\n    while time.process_time() < end: pass"
    solution = written(tmp_path, HALF.format(line))
    cases = [case.name for case in ops.load("rotate_half").cases("smoke")][:2]
    asked = grader.Asked([solution], {(solution.name, case) for case in cases})
    assert len(list(grader.Grader(fork_server, None).graded(asked))) == 2
    late = [line for line in capsys.readouterr().err.splitlines() if "no answer yet" in line]
    assert late == [f"{solution.name} {cases[0]}: no answer yet; it is at line 6 of rotate_half.py"]
