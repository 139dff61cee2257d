"""The corpora as they are timed on a GPU: cheats are caught there, and no honest solution is."""

from __future__ import annotations

import functools

import pytest
import torch

from common import ops
from common.grading.sweep import Sweep
from common.measure import timing
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


def timed_where_right(several):
    """Return what each solution gets by direction when it is timed on the first case it passes.

    A direction that is not supported is left out, as bench leaves it out.
    """
    found = {solution: {} for solution in several}
    for op in map(ops.load, sorted({solution.op for solution in several})):
        with Sweep("cuda", overlap=False) as sweep:
            concurrent = corpus.baseline_of(sweep, op)
            for graded in sweep.grade(op, op.cases("smoke"), several, lambda one, _: found[one]):
                if found[graded.solution]:
                    continue
                for direction, verdict in graded.verdicts.items():
                    if verdict.verdict == "PASSED":
                        times = timing.time_case(
                            graded, concurrent, direction, sweep.supervisor, corpus.SHORT
                        )
                        words = map(times.get, ("verdict", "reason", "unmeasured"))
                        found[graded.solution][direction] = " ".join(filter(None, words))
    return found


@pytest.fixture(scope="module")
def honest(together):
    return of_process(together, timed_where_right, HONEST)


@pytest.mark.parametrize("solution", HONEST, ids=lambda solution: solution.name)
def test_what_is_accepted_when_graded_is_accepted_when_timed(solution, honest):
    found = honest(solution)
    assert found and not any(found.values()), found
