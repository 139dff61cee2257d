"""Every attack of tests/cheats is caught, or harmless and graded as what it is."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from common import bench, ops, solutions
from common.measure import timing
from common.sweep import Sweep
from tests import corpus
from tests.corpus import BYSTANDERS, FINE, expected, promised, verdicts

CHEATS = solutions.discover(Path(__file__).parent / "cheats")
TIMED = [solution for solution in CHEATS if promised(solution, "Timed")]
ON_A_GPU = [solution for solution in CHEATS if promised(solution, "On a GPU")]
HONEST = [solution for solution in BYSTANDERS if solution.op in {cheat.op for cheat in CHEATS}]
CASE = "10x2x4x8-float32"


@pytest.fixture(scope="module")
def counts():
    with Sweep("cpu", deadline=corpus.DEADLINE) as sweep:
        return verdicts(sweep, CHEATS, HONEST)


@pytest.mark.parametrize("solution", CHEATS, ids=lambda solution: solution.handle)
def test_is_caught(solution, counts):
    assert not corpus.wrongly_judged(solution, counts)


@pytest.mark.parametrize("solution", HONEST, ids=lambda solution: solution.name)
def test_bystander_is_untouched(solution, counts):
    assert not corpus.harmed(solution, counts)


@pytest.fixture(scope="module")
def timed():
    """What becomes of each when it is timed; without a GPU by the host's clock alone."""
    with Sweep("cpu") as sweep, pytest.MonkeyPatch.context() as patch:
        patch.setattr(timing, "SECONDS", {"gpu": 0.02, "host": 0.02})
        op = ops.load("rotate_half")
        cases = [case for case in op.cases("smoke") if case.name == CASE]
        found = {}
        for solution, _, problem, _ in sweep.grade(op, cases, [*TIMED, *HONEST]):
            _, found[solution], _ = bench._time(sweep, solution, problem, "forward")
        return found


@pytest.mark.parametrize("solution", TIMED, ids=lambda solution: solution.handle)
def test_is_caught_when_timed(solution, timed):
    assert timed[solution] == promised(solution, "Timed")


@pytest.mark.parametrize("solution", HONEST, ids=lambda solution: solution.name)
def test_an_honest_one_is_timed(solution, timed):
    assert timed[solution] == "PASSED"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_is_caught_on_a_gpu():
    with Sweep("cuda") as sweep:
        counts = verdicts(sweep, ON_A_GPU)
    for solution in ON_A_GPU:
        got = {verdict for (each, _), by in counts.items() if each == solution for verdict in by}
        assert got - FINE == {promised(solution, "On a GPU")}


def test_corpus_is_large_enough():
    caught = [cheat for cheat in CHEATS if not FINE.issuperset(expected(cheat).values())]
    assert len(CHEATS) >= 20 and len(caught) >= 20
    assert {"TAMPERED", "OUT_OF_BOUNDS"} <= {v for c in CHEATS for v in expected(c).values()}


def test_the_docs_show_it(counts, pytestconfig):
    """`python -m pytest tests/test_wrong.py tests/test_cheats.py --write-docs` writes both."""
    table = corpus.table(CHEATS, counts)
    assert corpus.in_the_docs("cheats", table, pytestconfig.getoption("write_docs"))
