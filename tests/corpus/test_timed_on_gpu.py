"""The corpora as they are timed on a GPU: cheats are caught there, and no honest solution is."""

from __future__ import annotations

import functools

import pytest
import torch

from common.measure import timing
from common.peaks import peak_of
from tests.support import corpora as corpus
from tests.support.corpora import BESIDE_CHEATS, CHEATS, HONEST, promised

TIMED = [solution for solution in CHEATS if promised(solution, "Timed on a GPU")]
LARGE = [solution for solution in BESIDE_CHEATS if solution.op in corpus.LARGE]
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def timed():
    return corpus.timed("cuda", [*corpus.TIMED, *BESIDE_CHEATS])


@pytest.mark.parametrize("solution", corpus.TIMED, ids=lambda solution: solution.handle)
def test_is_caught_when_timed(solution, timed):
    assert timed[solution] == promised(solution, "Timed")


@pytest.mark.parametrize("solution", BESIDE_CHEATS, ids=lambda solution: solution.name)
def test_an_honest_one_is_timed(solution, timed):
    assert timed[solution] == "PASSED"


@pytest.fixture(scope="module")
def timed_large():
    if not peak_of(torch.cuda.get_device_name()):
        pytest.skip("nothing is known of what this GPU can do at most")
    return corpus.timed("cuda", [*TIMED, *LARGE], corpus.LARGE)


@pytest.mark.parametrize("solution", TIMED, ids=lambda solution: solution.handle)
def test_what_no_device_can_do_is_refused(solution, timed_large):
    assert timed_large[solution] == promised(solution, "Timed on a GPU")


@pytest.mark.parametrize("solution", LARGE, ids=lambda solution: solution.name)
def test_an_honest_one_is_timed_at_its_largest(solution, timed_large):
    assert timed_large[solution] == "PASSED"


@pytest.fixture(scope="module")
def honest(request):
    """Return a function that returns what an honest solution gets; it times all of the op."""
    chosen = [item.callspec.params["solution"] for item in request.session.items
              if "honest" in item.fixturenames]  # fmt: skip

    @functools.cache
    def timed(op):
        return corpus.timed_where_right("cuda", [each for each in chosen if each.op == op])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(timing, "SECONDS", corpus.SHORT)
        yield lambda solution: timed(solution.op)[solution]


@pytest.mark.parametrize("solution", HONEST, ids=lambda solution: solution.name)
def test_what_is_accepted_when_graded_is_accepted_when_timed(solution, honest):
    assert honest(solution) and set(honest(solution).values()) == {"PASSED"}
