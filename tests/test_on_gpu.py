"""Both corpora on a GPU: what only shows there, and what must show there too."""

from __future__ import annotations

import pytest
import torch

from common.grading.sweep import Sweep
from common.grading.tiers import REPEATS
from common.peaks import peak_of
from tests import corpus
from tests.corpus import promised
from tests.grader import test_cheats, test_wrong

ALL = [*test_wrong.WRONG, *test_cheats.CHEATS]
THERE = [solution for solution in ALL if promised(solution, "On a GPU")]
TIMED = [solution for solution in test_cheats.CHEATS if promised(solution, "Timed on a GPU")]
HONEST = [solution for solution in test_cheats.HONEST if solution.op in corpus.LARGE]
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.fixture(scope="module")
def counts():
    """On large cases too: only there do programs wait for others to end."""
    with Sweep("cuda") as sweep:
        small = corpus.verdicts(sweep, (), [*THERE, *corpus.BYSTANDERS])
        large = corpus.verdicts(sweep, (), THERE, corpus.large, REPEATS)
    return {each: small[each] + large[each] for each in small}


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


@pytest.fixture(scope="module")
def timed_large():
    if not peak_of(torch.cuda.get_device_name()):
        pytest.skip("nothing is known of what this GPU can do at most")
    return corpus.timed("cuda", [*TIMED, *HONEST], corpus.LARGE)


@pytest.mark.parametrize("solution", TIMED, ids=lambda solution: solution.handle)
def test_what_no_device_can_do_is_refused(solution, timed_large):
    assert timed_large[solution] == promised(solution, "Timed on a GPU")


@pytest.mark.parametrize("solution", HONEST, ids=lambda solution: solution.name)
def test_an_honest_one_is_timed_at_its_largest(solution, timed_large):
    assert timed_large[solution] == "PASSED"
