"""The two halves of `study check`: many small cases at once, then the board's by themselves."""

from __future__ import annotations

import argparse
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import NamedTuple

import pytest

from common import ops
from common.commands import check, smoke
from common.commands import options as shared
from common.commands.report import TierReport
from common.grading import memory as memories
from common.grading import sweep
from common.grading.compiling import Compiler
from common.measure import rows
from common.solutions import Solution, imports_of_ours
from common.spec import DIRECTIONS
from common.verdicts import Verdict
from tests.support.records import row

GIB = 1 << 30


class Sweep:
    """A sweep that grades nothing and remembers how it was made."""

    def __init__(self, device, overlap=None, server=None, memory=None, grade=None, late=None):
        self.made.append((device, overlap, server, memory.budget))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def grade(self, op, cases, solutions, skip):
        for case in [case for case in cases if not skip(solutions[0], case)]:
            problem = SimpleNamespace(op=op)
            yield SimpleNamespace(solution=solutions[0], case=case, problem=problem, verdicts={})


@pytest.fixture
def halves(monkeypatch, tmp_path):
    """Return what each half was asked, on a GPU that is not there."""
    monkeypatch.setattr(sweep, "Sweep", Sweep)
    monkeypatch.setattr(memories, "_free", lambda: 1 << 40)
    monkeypatch.setattr(Sweep, "made", [], raising=False)
    (tmp_path / "rope.py").touch()
    return [Solution(tmp_path / "rope.py", "rope")], SimpleNamespace(device="cuda")


def test_imports_of_this_repository_are_named(tmp_path):
    folder = tmp_path / "alice"
    (folder / "helpers").mkdir(parents=True)
    (folder / "rope.py").write_text("import torch\nfrom helpers import tiles\n")
    (folder / "helpers" / "tiles.py").write_text("from common.ops.rope import reference\n")
    (folder / "broken.py").write_text("def f(:\n")
    (line,) = imports_of_ours(folder)
    assert line.startswith("alice/helpers/tiles.py imports common.ops.rope.reference: a folder")


@pytest.mark.parametrize("line", ["from common import ops", "import common.spec as ops"])
def test_a_folder_that_imports_this_repository_gets_that_verdict_alone(
    tmp_path, monkeypatch, capsys, line
):
    (tmp_path / "rope.py").write_text(f"{line}\n\ndef rope(t, freqs):\n    return t\n")
    chosen = [Solution(tmp_path / "rope.py", "rope")]
    monkeypatch.setattr(shared, "contributors", lambda options: chosen)
    monkeypatch.setattr(smoke, "started", lambda *_: pytest.fail("it is graded"))
    options = argparse.Namespace(handle="alice", only=None, watch=False, hint=False)
    assert check.run(options) == 1
    (told,) = capsys.readouterr().out.splitlines()
    assert "imports common" in told


# --- the last lines -------------------------------------------------------------------------------


def lacking(track, *reasons):
    """The rows of a track with backward: one passes forward, and one for each reason."""
    passed = row(solution="alice/rope", track=track, case=f"{track}-0")
    unsupported = partial(row, solution="alice/rope", track=track, verdict="UNSUPPORTED")
    return [passed] + [
        unsupported(case=f"{track}-{n}", direction="backward", reason=reason)
        for n, reason in enumerate(reasons)
    ]


def test_the_last_line_of_what_no_track_ranks_is_that_with_the_reasons():
    found = [*lacking("standard", "no grad_fn", "no grad_fn"), *lacking("packed", "thd", "cp")]
    *gaps, last = check.conclusion(found, "2 of 6 cases")
    assert gaps == [
        "alice/rope has no place in standard (lacks 2 of 3 rows): no grad_fn",
        "alice/rope has no place in packed (lacks 2 of 3 rows): thd; cp",
    ]
    assert last.startswith("No track ranks alice, although all that is answered is right")


def test_the_same_reason_in_several_tracks_is_one_line_and_a_place_leads_to_bench():
    found = [
        *lacking("standard"),
        *lacking("partial", "no grad_fn"),
        *lacking("core", "no grad_fn"),
    ]
    *gaps, last = check.conclusion(found, "3 of 5 cases")
    (gap,) = gaps
    assert "no place in partial (lacks 1 of 2 rows), core (lacks 1 of 2 rows): no grad_fn" in gap
    assert last.endswith("Next: nox -s bench leaderboard -- --only alice")
    assert len(list(check.conclusion(lacking("standard"), "1 of 1 case"))) == 1


class Graded(NamedTuple):
    solution: Solution
    case: SimpleNamespace
    verdicts: dict


def test_what_is_interpreted_comes_first_and_what_does_not_compile_comes_again(tmp_path):
    solution = Solution(tmp_path / "rope.py", "rope")
    graded = [Graded(solution, SimpleNamespace(name=n), {"forward": "PASSED"}) for n in range(3)]
    refused = graded[1]._replace(verdicts={"forward": "COMPILE_ERROR"})
    futures = {case: Future() for case in (0, 1, 2)}
    found = smoke.compiled(graded, SimpleNamespace(submit=lambda case: futures[case.case.name]))
    assert [next(found) for _ in range(3)] == graded, "none waits for a compilation"
    for future, judged in zip(futures.values(), [graded[0], refused, graded[2]], strict=True):
        future.set_result(judged)
    assert list(found) == [refused]
    futures[0] = Future()
    found = smoke.compiled(graded[:1], SimpleNamespace(submit=lambda _: futures[0]))
    next(found)
    found.close()
    assert futures[0].cancelled(), "compilation ends with the cases"


def test_what_failed_last_is_asked_first_and_once(halves):
    chosen, server = halves
    every = [graded.case.name for graded in smoke.grade_smoke_cases(chosen, server, GIB)]
    assert Sweep.made == [("cuda", True, server, GIB)], "several cases at once"
    first = {(chosen[0].name, every[5]), (chosen[0].name, every[2]), ("other/rope", every[0])}
    asked = [graded.case.name for graded in smoke.grade_smoke_cases(chosen, server, GIB, first)]
    assert asked[:3] == [every[2], every[5], every[0]]
    assert sorted(asked) == sorted(every)


def test_the_board_is_timed_alone_and_for_a_shorter_time(halves, monkeypatch, capsys):
    chosen, server = halves
    report, asked = TierReport("board", verbose=False), []
    op = ops.load("rope")
    case = next(op.cases("board"))
    passed = Verdict("a/rope", "rope", case.name, "forward", "PASSED")
    problem = SimpleNamespace(op=op, case=case)
    verdicts = {direction: replace(passed, direction=direction) for direction in DIRECTIONS}
    graded = SimpleNamespace(problem=problem, verdicts=verdicts)
    late = row(direction="backward", verdict="TAMPERED", reason="while timed")

    class Measurement:
        def __init__(self, sweep, digests, time_scale, through):
            asked.append((time_scale, through))

        def measure(self, solutions, cases, skip):
            asked.append((solutions, [op.name for op, _ in cases]))
            yield [rows.Measured(each, None, graded) for each in (row(), late)]

    monkeypatch.setattr(rows, "Measurement", Measurement)
    compiler = Compiler("cuda")
    assert check.measure_board(chosen, server, compiler, report, GIB) == [row(), late]
    assert Sweep.made == [("cuda", None, server, GIB)], "whoever times has the device to himself"
    assert asked == [(check.TIME_SCALE, compiler.behind), (chosen, [chosen[0].op])]
    backward = f"a/rope {case.name} backward: TAMPERED\n    while timed\n"
    assert backward in capsys.readouterr().out, "the clock has found something"
