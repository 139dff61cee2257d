"""The corpora as they are timed on a GPU: cheats are caught there, and no honest solution is."""

import functools

import pytest
import torch

from common import ops
from common.grading.sweep import Sweep
from common.measure import timing
from common.peaks import PEAKS
from common.spec import DIRECTIONS
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


def alone(gpu, names):
    """Return a function that times solutions on one case each while no other test uses the GPU."""

    def timed(several):
        with gpu(alone=True):
            return corpus.timed("cuda", several, names)

    return timed


@pytest.fixture(scope="module")
def timed(together, gpu):
    return of_process(together, alone(gpu, corpus.SMALL), [*corpus.TIMED, *BESIDE_CHEATS])


@pytest.mark.parametrize("solution", [*corpus.TIMED, *BESIDE_CHEATS], ids=lambda each: each.name)
def test_a_cheat_is_caught_when_timed_and_an_honest_one_is_timed(solution, timed):
    assert timed(solution) == (promised(solution, "Timed") or "PASSED")


@pytest.fixture(scope="module")
def timed_large(together, gpu):
    if not PEAKS.get(torch.cuda.get_device_name()):
        pytest.skip("nothing is known of what this GPU can do at most")
    return of_process(together, alone(gpu, corpus.LARGE), [*TIMED, *LARGE])


@pytest.mark.parametrize("solution", [*TIMED, *LARGE], ids=lambda solution: solution.name)
def test_what_no_device_can_do_is_refused(solution, timed_large):
    assert timed_large(solution) == (promised(solution, "Timed on a GPU") or "PASSED")


def timed_where_right(gpu, several, device="cuda"):
    """Return what each solution gets when it is timed on the first case it passes.

    Every other solution is timed with backward, where it has one. While one process times, which
    needs the GPU alone, the others wait with solutions that have been graded.
    """
    found, passed = {}, {}
    for op in map(ops.load, sorted({solution.op for solution in several})):
        with Sweep(device, overlap=True) as sweep:
            with gpu():
                concurrent = corpus.baseline_of(sweep, op)
                cases = sorted(op.cases("smoke"), key=lambda case: case.far_bytes)
                for graded in sweep.grade(op, cases, several, lambda one, _: one in passed):
                    if graded.verdicts["forward"].verdict == "PASSED":
                        passed.setdefault(graded.solution, graded)
            with gpu(alone=True):
                for index, graded in enumerate(passed.values()):
                    backward = graded.verdicts.get("backward")
                    both = index % 2 and backward and backward.verdict == "PASSED"
                    times = timing.time_case(
                        graded, concurrent, DIRECTIONS[bool(both)], sweep.supervisor, corpus.SHORT
                    )
                    words = map(times.get, ("verdict", "reason", "unmeasured"))
                    found[graded.solution] = " ".join(filter(None, words))
        passed.clear()
    return found


@pytest.fixture(scope="module")
def honest(together, gpu):
    return of_process(together, functools.partial(timed_where_right, gpu), HONEST)


@pytest.mark.parametrize("solution", HONEST, ids=lambda solution: solution.name)
def test_what_is_accepted_when_graded_is_accepted_when_timed(solution, honest):
    assert honest(solution) == ""
