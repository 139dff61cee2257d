"""The corpora as they are timed on a GPU: cheats are caught there, and no honest solution is."""

from __future__ import annotations

import functools

import pytest
import torch

from common.peaks import peak_of
from tests.support import corpora as corpus
from tests.support.corpora import BESIDE_CHEATS, CHEATS, HONEST, promised

TIMED = [solution for solution in CHEATS if promised(solution, "Timed on a GPU")]
LARGE = [solution for solution in BESIDE_CHEATS if solution.op in corpus.LARGE]
pytestmark = [pytest.mark.slow, pytest.mark.alone]


def of_process(together, measure, several):
    """Return a function that returns what a solution gets, measured with those of its process."""
    measure = functools.cache(measure)

    def found(solution):
        return measure(tuple(each for each in together(solution) if each in several))[solution]

    return found


@pytest.fixture(scope="module")
def timed(together):
    several = [*corpus.TIMED, *BESIDE_CHEATS]
    return of_process(together, functools.partial(corpus.timed, "cuda"), several)


@pytest.mark.parametrize("solution", corpus.TIMED, ids=lambda solution: solution.name)
def test_is_caught_when_timed(solution, timed):
    assert timed(solution) == promised(solution, "Timed")


@pytest.mark.parametrize("solution", BESIDE_CHEATS, ids=lambda solution: solution.name)
def test_an_honest_one_is_timed(solution, timed):
    assert timed(solution) == "PASSED"


@pytest.fixture(scope="module")
def timed_large(together):
    if not peak_of(torch.cuda.get_device_name()):
        pytest.skip("nothing is known of what this GPU can do at most")
    measure = functools.partial(corpus.timed, "cuda", names=corpus.LARGE)
    return of_process(together, measure, [*TIMED, *LARGE])


@pytest.mark.parametrize("solution", TIMED, ids=lambda solution: solution.name)
def test_what_no_device_can_do_is_refused(solution, timed_large):
    assert timed_large(solution) == promised(solution, "Timed on a GPU")


@pytest.mark.parametrize("solution", LARGE, ids=lambda solution: solution.name)
def test_an_honest_one_is_timed_at_its_largest(solution, timed_large):
    assert timed_large(solution) == "PASSED"


@pytest.fixture(scope="module")
def honest(together):
    return of_process(together, functools.partial(corpus.timed_where_right, "cuda"), HONEST)


@pytest.mark.parametrize("solution", HONEST, ids=lambda solution: solution.name)
def test_what_is_accepted_when_graded_is_accepted_when_timed(solution, honest):
    assert honest(solution) and set(honest(solution).values()) == {"PASSED"}
