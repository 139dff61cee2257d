"""Both corpora on a GPU: what only shows there, and what must show there too."""

from __future__ import annotations

from collections import Counter, defaultdict

import pytest
import torch

from common import ops
from common.grading.sweep import Sweep
from common.grading.tiers import REPEATS
from common.peaks import peak_of
from common.verdicts import FINE
from tests import corpus
from tests.corpus import WITNESSED, expected, promised
from tests.grader import test_cheats, test_wrong

ALL = [*test_wrong.WRONG, *test_cheats.CHEATS]
TIMED = [solution for solution in test_cheats.CHEATS if promised(solution, "Timed on a GPU")]
HONEST = [solution for solution in test_cheats.HONEST if solution.op in corpus.LARGE]
DEADLINE = 30.0
"""Seconds of work on one reply: some kernels never end, and all are compiled at the same time."""
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def awaited(solution):
    """Return the verdicts of which a kernel gets one: those on a GPU where it promises any."""
    there = promised(solution, "On a GPU")
    return {there} - FINE if there else {*expected(solution).values()} - FINE


@pytest.fixture(scope="module")
def counts():
    """Count each one's verdicts until it gets an awaited one, or a few if there is none.

    The large cases come last: only there do programs wait for others to end.
    """
    counted = defaultdict(Counter)

    def skip(solution, case):
        got, wanted = counted[solution], awaited(solution) if solution in ALL else set()
        return bool(wanted & got.keys()) or (not wanted and got.total() >= WITNESSED)

    def count(sweep, cases, repeats):
        for op in map(ops.load, sorted({each.op for each in ALL})):
            for graded in sweep.grade(op, cases(op), [*ALL, *corpus.BYSTANDERS], skip, repeats):
                said = (each.verdict for each in graded.verdicts.values())
                counted[graded.solution].update(said)

    with Sweep("cuda", deadline=DEADLINE, overlap=True) as sweep:
        count(sweep, corpus.smoke, 0)
    with Sweep("cuda", deadline=DEADLINE) as sweep:
        count(sweep, corpus.large, REPEATS)
    return counted


@pytest.mark.parametrize("solution", ALL, ids=lambda solution: solution.handle)
def test_is_caught(solution, counts):
    wanted, got = awaited(solution), counts[solution]
    assert wanted & got.keys() if wanted else got and got.keys() <= FINE, dict(got)


@pytest.mark.parametrize("solution", corpus.BYSTANDERS, ids=lambda solution: solution.name)
def test_bystander_is_untouched(solution, counts):
    """Some of the others leave their CUDA context unusable."""
    assert {"PASSED"} <= counts[solution].keys() <= FINE, dict(counts[solution])


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
