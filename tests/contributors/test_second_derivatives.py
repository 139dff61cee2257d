"""A gradient that is differentiated again is right or an error: never wrong without a word."""

import pytest

from common import ops, solutions
from common.grading.remarks import DOUBLE
from common.grading.sweep import Sweep
from common.paths import CONTRIBUTORS
from common.solutions import Solution
from tests.support.corpora import HONEST
from tests.support.workers import CHOOSE, chosen

pytestmark = pytest.mark.slow

TEMPLATES = (Solution(CONTRIBUTORS / "_template" / f"{op}.py", op) for op in ops.names())
OURS = [*solutions.discover(), *(each for each in TEMPLATES if each.path.exists())]
TOLD_APART = {"twice_differentiable": False, "persistent_programs": True}
WITNESSES = {each.handle: each for each in HONEST if each.handle in TOLD_APART}


@pytest.fixture(scope="module")
def notes(fork_server):
    """Return the kinds of notes on backward by solution, in its first right case of some size."""
    found, everyone = {}, [*OURS, *WITNESSES.values()]
    with pytest.MonkeyPatch.context() as patch, Sweep("cpu", server=fork_server) as sweep:
        patch.setattr(CHOOSE, chosen(keeps_graph=True))
        for op in map(ops.load, ops.names()):
            cases = [case for case in op.cases("smoke")
                     if case.dtype == "float32" and op.elements(case) in DOUBLE]  # fmt: skip
            for graded in sweep.grade(op, cases, everyone, lambda each, _: each in found):
                backward = graded.verdicts.get("backward")
                if backward and backward.verdict == "PASSED":
                    found.setdefault(graded.solution, {n.kind for n in backward.notes if n.found})
    return found


@pytest.mark.parametrize("solution", OURS, ids=lambda solution: solution.name)
def test_a_second_derivative_is_right_or_an_error(solution, notes):
    assert "OTHER_SECOND_DERIVATIVES" not in notes[solution]


@pytest.mark.parametrize("name", TOLD_APART)
def test_what_is_right_and_what_is_lost_are_told_apart(name, notes):
    assert ("OTHER_SECOND_DERIVATIVES" in notes[WITNESSES[name]]) == TOLD_APART[name]
