"""Every attack of tests/cheats is caught, or harmless and graded as what it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from common import solutions
from common.measure import timing
from common.sweep import Sweep
from tests import corpus
from tests.corpus import BYSTANDERS, FINE, expected, promised, verdicts

CHEATS = solutions.discover(Path(__file__).parent / "cheats")
TIMED = [solution for solution in CHEATS if promised(solution, "Timed")]
SHORT = {clock: {"gpu": 0.02, "host": 0.02} for clock in ("gpu", "host")}
HONEST = [solution for solution in BYSTANDERS if solution.op in {cheat.op for cheat in CHEATS}]


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
    """Without a GPU by the host's clock alone; test_on_gpu.py has the other."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(timing, "SECONDS", SHORT)
        return corpus.timed("cpu", [*TIMED, *HONEST])


@pytest.mark.parametrize("solution", TIMED, ids=lambda solution: solution.handle)
def test_is_caught_when_timed(solution, timed):
    assert timed[solution] == promised(solution, "Timed")


@pytest.mark.parametrize("solution", HONEST, ids=lambda solution: solution.name)
def test_an_honest_one_is_timed(solution, timed):
    assert timed[solution] == "PASSED"


def test_what_no_device_can_do_is_refused(monkeypatch):
    monkeypatch.setattr(timing, "SECONDS", SHORT)
    monkeypatch.setattr(timing.limits, "broken", lambda samples, work, device: "too fast")
    assert set(corpus.timed("cpu", HONEST).values()) == {"IMPOSSIBLE_SPEED"}


def test_corpus_is_large_enough():
    caught = [cheat for cheat in CHEATS if not FINE.issuperset(expected(cheat).values())]
    assert len(CHEATS) >= 20 and len(caught) >= 20
    assert {"TAMPERED", "OUT_OF_BOUNDS"} <= {v for c in CHEATS for v in expected(c).values()}


def test_the_docs_show_it(counts, pytestconfig):
    """`python -m pytest tests/test_wrong.py tests/test_cheats.py --write-docs` writes both."""
    table = corpus.table(CHEATS, counts)
    assert corpus.in_the_docs("cheats", table, pytestconfig.getoption("write_docs"))
