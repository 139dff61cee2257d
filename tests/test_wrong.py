"""Every kernel of tests/wrong gets the verdict its docstring promises, and harms nobody."""

from __future__ import annotations

import ast
import re
from collections import Counter, defaultdict
from pathlib import Path

import pytest

from common import ops, solutions
from common.solutions import CONTRIBUTORS, Solution
from common.spec import DIRECTIONS
from common.sweep import Sweep

WRONG = solutions.discover(Path(__file__).parent / "wrong")
BYSTANDERS = solutions.select(solutions.discover(CONTRIBUTORS), only="house")
DEADLINE = 5.0
EXPECTED = re.compile(r"Expected: forward=(\w+) backward=(\w+)")


def expected(solution: Solution) -> dict[str, str]:
    """What the docstring promises; read as text, since one of them is no Python."""
    found = EXPECTED.search(solution.path.read_text())
    assert found, f"{solution.name} promises no verdict"
    return dict(zip(DIRECTIONS, found.groups(), strict=True))


@pytest.fixture(scope="module")
def counts():
    """Verdicts by solution and direction, all of them graded in one run with honest ones. A wrong
    one is done when both directions have shown what they must, which saves a minute."""
    counted = defaultdict(Counter)

    def shown(solution, case):
        return solution in WRONG and all(
            counted[solution, direction][verdict]
            for direction, verdict in expected(solution).items()
        )

    with Sweep("cpu", deadline=DEADLINE) as sweep:
        for name in sorted({solution.op for solution in WRONG}):
            op = ops.load(name)
            for solution, _, _, verdicts in sweep.grade(
                op, op.cases("smoke"), [*WRONG, *BYSTANDERS], skip=shown
            ):
                for direction, verdict in verdicts.items():
                    counted[solution, direction][verdict.verdict] += 1
    return counted


@pytest.mark.parametrize("solution", WRONG, ids=lambda solution: solution.handle)
def test_is_caught(solution, counts):
    for direction, verdict in expected(solution).items():
        got = set(counts[solution, direction]) - {"PASSED", "UNSUPPORTED"}
        assert got == {verdict} - {"PASSED"}, f"{direction}: {dict(counts[solution, direction])}"


@pytest.mark.parametrize("solution", BYSTANDERS, ids=lambda solution: solution.name)
def test_bystander_is_untouched(solution, counts):
    """Among them are one that kills its process, one that never ends and one that is no Python."""
    for direction in DIRECTIONS:
        assert set(counts[solution, direction]) <= {"PASSED", "UNSUPPORTED"}
        assert counts[solution, direction]["PASSED"] > 0


def test_corpus_has_every_failure():
    promised = {verdict for solution in WRONG for verdict in expected(solution).values()}
    assert promised >= {
        "COMPILE_ERROR", "RUNTIME_ERROR", "CRASHED", "TIMEOUT", "OUT_OF_BOUNDS", "MUTATED_INPUT",
        "UNWRITTEN_OUTPUT", "INCORRECT_SHAPE", "INCORRECT_DTYPE", "INCORRECT_NUMERICAL",
        "NONDETERMINISTIC",
    }  # fmt: skip


def test_corpus_stands_apart():
    """No wrong kernel is anybody's solution."""
    found = {solution.path for solution in solutions.discover()}
    assert not found & {solution.path for solution in WRONG}
    assert all(ast.parse(s.path.read_text()) for s in WRONG if s.handle != "syntax_error")
