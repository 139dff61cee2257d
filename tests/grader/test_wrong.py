"""Every kernel of tests/wrong gets the verdict its docstring promises, and harms nobody."""

from __future__ import annotations

import ast

import pytest

from common import solutions
from common.grading.compiling import Compiler
from common.grading.sweep import Sweep
from common.paths import ROOT
from tests import corpus
from tests.corpus import BYSTANDERS, expected, verdicts

WRONG = solutions.discover(ROOT / "tests" / "wrong")


@pytest.fixture(scope="module")
def counts():
    with (
        Compiler("cpu") as compiler,
        Sweep("cpu", deadline=corpus.DEADLINE, grade=compiler.grade) as sweep,
    ):
        return verdicts(sweep, WRONG, BYSTANDERS)


@pytest.mark.parametrize("solution", WRONG, ids=lambda solution: solution.handle)
def test_is_caught(solution, counts):
    assert not corpus.wrongly_judged(solution, counts)


@pytest.mark.parametrize("solution", BYSTANDERS, ids=lambda solution: solution.name)
def test_bystander_is_untouched(solution, counts):
    """Among them are one that kills its process, one that never ends and one that is no Python."""
    assert not corpus.harmed(solution, counts)


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


def test_the_docs_show_it(counts, pytestconfig):
    """`nox -s grader -- --write-docs` writes both."""
    table = corpus.table(WRONG, counts)
    assert corpus.in_the_docs("wrong", table, pytestconfig.getoption("write_docs"))
