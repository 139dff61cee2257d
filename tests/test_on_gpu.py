"""Both corpora on a GPU: what only shows there, and what must show there too."""

from __future__ import annotations

import pytest
import torch

from common.sweep import Sweep
from tests import corpus, test_cheats, test_wrong
from tests.corpus import promised

ALL = [*test_wrong.WRONG, *test_cheats.CHEATS]
THERE = [solution for solution in ALL if promised(solution, "On a GPU")]
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.fixture(scope="module")
def counts():
    with Sweep("cuda") as sweep:
        return corpus.verdicts(sweep, (), [*THERE, *corpus.BYSTANDERS])


@pytest.mark.parametrize("solution", THERE, ids=lambda solution: solution.handle)
def test_is_caught(solution, counts):
    got = {verdict for (one, _), by in counts.items() if one == solution for verdict in by}
    assert promised(solution, "On a GPU") in got


@pytest.mark.parametrize("solution", corpus.BYSTANDERS, ids=lambda solution: solution.name)
def test_bystander_is_untouched(solution, counts):
    """One of the others leaves its CUDA context unusable."""
    assert not corpus.harmed(solution, counts)


@pytest.fixture(scope="module")
def timed():
    return corpus.timed("cuda", [*test_cheats.TIMED, *test_cheats.HONEST])


@pytest.mark.parametrize("solution", test_cheats.TIMED, ids=lambda solution: solution.handle)
def test_is_caught_when_timed(solution, timed):
    assert timed[solution] == promised(solution, "Timed")


@pytest.mark.parametrize("solution", test_cheats.HONEST, ids=lambda solution: solution.name)
def test_an_honest_one_is_timed(solution, timed):
    assert timed[solution] == "PASSED"
