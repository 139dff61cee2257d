"""What `study check` refuses, compiles again and says last."""

import re
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

from common import ops
from common.board import terminal
from common.commands import grader, report
from common.grading.compiling import Compiler
from common.solutions import Solution
from tests.support.boards import counted, launch
from tests.support.records import row
from tests.support.study import RIGHT
from tests.support.workers import HALF, written


def test_a_folder_that_imports_this_repository_is_named_and_not_graded(study, by_hand, repository):
    by_hand("alice", "import torch\nfrom helpers import tiles\n" + RIGHT)
    folder = repository / "contributors" / "alice"
    (folder / "helpers").mkdir()
    (folder / "helpers" / "tiles.py").write_text("from common.ops.rope import reference\n")
    (folder / "broken.py").write_text("def f(:\n")
    (folder / "late.py").write_text("import importlib\nimportlib.import_module('common.spec')\n")
    ran = study("check", "alice")
    first, second = ran.out.splitlines()
    assert first.startswith("alice/helpers/tiles.py imports common.ops.rope.reference: a folder")
    assert second.startswith("alice/late.py imports common.spec: a folder")
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


def lacking(track, lacks, directions=("backward",)):
    """The rows of a track with backward: one passes forward, and others are not supported."""
    made = partial(row, solution="alice/rope", track=track)
    return [made(case=f"{track}-0")] + [
        made(verdict="UNSUPPORTED", case=f"{track}-{n}", direction=direction)
        for n in range(1, lacks + 1) for direction in directions
    ]  # fmt: skip


def test_a_folder_is_told_what_each_track_lacks_and_a_place_leads_to_bench():
    packed = lacking("packed", 2, ("forward", "backward"))
    gap, last = terminal.conclusion([*lacking("standard", 2), *packed])
    lacks = "standard with backward (lacks 2 of 3 cases), packed (lacks 2 of 3 cases)"
    assert gap == f"alice/rope has no place in {lacks}"
    assert last.startswith("No track ranks alice with backward, although all that is answered")
    gap, last = terminal.conclusion([*lacking("standard", 0), *lacking("partial", 1)])
    assert gap == "alice/rope has no place in partial with backward (lacks 1 of 2 cases)"
    assert last == "Next: nox -s bench leaderboard -- --only alice"


def test_an_improvement_is_told_beside_what_was_before(tmp_path, monkeypatch):
    """The work of a right call takes a copy's time on every case of the main track."""
    monkeypatch.setattr("common.disk_cache.CACHE", tmp_path)
    solution, op = Solution(tmp_path / "alice" / "rope.py", "rope"), ops.load("rope")

    def work(times, cases, uncertain):
        for case in cases:
            least = op.work(case, "forward")
            step = launch(grid=(132, 1, 1), fetched=3 * case.shape[0], written=0,
                          read=times * least.bytes, uncertain=uncertain)  # fmt: skip
            yield counted("alice/rope", step, case=case.name, bytes=least.bytes)

    def told(times, cases=None, uncertain=0.0):
        cases = cases or list(op.cases("board"))
        monkeypatch.setattr(report, "counts", lambda *_: work(times, cases, uncertain))
        return list(report.modelled_places("alice", [solution]))

    (first,) = told(4)
    place = r"0\.[23]\d of the limit, place \d+ of \d+ in standard; .*; 1 kernel launch and 0 torch"
    assert re.search(rf"on an H200 \(errs by some 10%\): {place} operators a call$", first)
    for _ in range(2):  # what was before stays until the work changes again
        (now,) = told(1)
        assert "1.00 of the limit, place 1 of" in now
        assert now.endswith(f"; before: {first.partition('%): ')[2]}")
    assert told(1, [next(op.cases("board"))]) == [], "it does not cover the track"
    assert "%): ~1.00 of" in told(1, uncertain=0.1)[0], "an uncertain count is no fact"


def test_a_case_that_does_not_compile_comes_again_as_soon_as_that_is_known():
    futures = {case: Future() for case in "abc"}
    compiler = SimpleNamespace(submit=futures.get, _needed=True)
    found = Compiler.behind(compiler, "abc", early=True)
    assert [next(found) for _ in range(2)] == ["a", "b"], "none waits for a compilation"
    futures["a"].set_result("a")
    futures["b"].set_result("refused")
    assert [next(found) for _ in range(2)] == ["refused", "c"], "nor for the last case"
    futures["c"].set_result("c")
    assert not list(found)
    compiler.submit = lambda outcome: futures["b"]
    raised = SimpleNamespace(verdicts={"forward": SimpleNamespace(verdict="RUNTIME_ERROR")})
    assert [*Compiler.behind(compiler, [raised], early=True)] == ["refused"], "told once"
    compiler.submit = futures.get
    futures["a"] = Future()
    found = Compiler.behind(compiler, "a", early=True)
    next(found)
    found.close()
    assert futures["a"].cancelled(), "compilation ends with the cases"


def test_who_is_late_is_named_with_case_and_line_once(fork_server, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("common.grading.worker.LATE", 0.1)
    once = "import time; end = globals().setdefault('end', time.process_time() + 1)"
    line = f"{once}\n    while time.process_time() < end: pass"
    solution = written(tmp_path, HALF.format(line))
    cases = [case.name for case in ops.load("rotate_half").cases("smoke")][:2]
    asked = grader.Asked([solution], {(solution.name, case) for case in cases})
    assert len(list(grader.Grader(fork_server, Compiler("cuda")).smoke_cases(asked))) == 2
    late = [line for line in capsys.readouterr().err.splitlines() if "no answer yet" in line]
    assert late == [f"{solution.name} {cases[0]}: no answer yet; it is at line 6 of rotate_half.py"]
