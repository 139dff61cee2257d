"""What is compared with is computed when it is first compared, once."""

from __future__ import annotations

import threading

import pytest

from common import ops
from common.draws import Draws
from common.grading import problem
from common.grading.late import Late, Once
from common.grading.problem import OUTPUT, make_problem
from common.grading.sweep import Sweep
from common.solutions import Solution

HALF = ops.load("rotate_half")
CASES = [case for case in HALF.cases("smoke") if not case.span][:4]


@pytest.fixture
def solved(monkeypatch):
    """Return the cases whose oracle was computed."""
    found, truth = [], problem.oracle.truth

    def counted(op, *drawn):
        found.append(op.name)
        return truth(op, *drawn)

    monkeypatch.setattr(problem.oracle, "truth", counted)
    return found


@pytest.mark.parametrize(
    ("body", "computed"), [("raise NotImplementedError", False), ("return x.clone()", True)]
)
def test_an_unsupported_case_needs_no_oracle(tmp_path, fork_server, solved, body, computed):
    path = tmp_path / "rotate_half.py"
    path.write_text(f"def rotate_half(x, *, interleaved=False):\n    {body}\n")
    with Sweep("cpu", server=fork_server) as sweep:
        found = list(sweep.grade(HALF, CASES, [Solution(path, "rotate_half")]))
    assert len(found) == len(CASES)
    assert bool(solved) == computed
    assert all(bool(each.problem.budgets) == computed for each in found)


def test_shapes_are_known_before(solved):
    made = make_problem(HALF, CASES[0], Draws(1), "cpu")
    assert set(made.truth) == {OUTPUT, "x"} and "x" in made.truth
    assert made.shapes == dict.fromkeys((OUTPUT, "x"), made.arguments["x"].shape)
    assert made.outline.truth[OUTPUT].is_meta and not solved
    assert made.truth[OUTPUT].shape == made.shapes[OUTPUT] and solved


def test_threads_that_ask_at_once_have_it_computed_once():
    asked, begun = [], threading.Barrier(8)

    def make():
        asked.append(1)
        return {"a": len(asked)}

    late = Late(("a",), Once(make), dict)
    found = []

    def ask():
        begun.wait()
        found.append(late["a"])

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [1] * 8 and late.known
    with pytest.raises(KeyError):
        late["b"]


def test_what_failed_is_tried_again():
    tries = iter([ValueError("once"), None])

    def make():
        if error := next(tries):
            raise error
        return {"a": 1}

    late = Late(("a",), Once(make), dict)
    with pytest.raises(ValueError, match="once"):
        late["a"]
    assert not late.known and late["a"] == 1
