"""CUDA graphs of a solution that keeps cos and sin, captured and replayed on a GPU.

A graph that is captured while the tables are known holds the rotation alone, with the old tables.
"""

import pytest

from common import ops, solutions
from common.grading.sweep import Graded, Sweep
from common.measure import timing
from common.measure.rows import TIME_SCALE
from common.paths import ROOT
from common.spec import DIRECTIONS
from tests.support import corpora as corpus

pytestmark = pytest.mark.slow

ROPE = ops.load("rope")
BOARD = list(ROPE.tier("board", "cuda"))
HONEST = solutions.discover(ROOT / "tests" / "corpus" / "honest")
KEEPS = next(solution for solution in HONEST if solution.name == "tables_held_weakly/rope")
HOUSE = next(solution for solution in solutions.discover() if solution.name == "house/rope")


@pytest.fixture(scope="module")
def timed():
    """Return by solution, direction and case of the board the times, or the verdict.

    KEEPS answers no context parallelism.
    """
    solutions = {}
    with Sweep("cuda", overlap=False) as sweep:
        beside = corpus.baseline_of(sweep, ROPE)
        for graded in sweep.grade(ROPE, BOARD, [KEEPS, HOUSE]):
            for direction in DIRECTIONS if isinstance(graded, Graded) else ():
                verdict = graded.verdicts[direction].verdict
                if graded.solution == KEEPS and verdict == "UNSUPPORTED":
                    continue
                assert verdict == "PASSED"
                times = timing.time_case(
                    graded, beside, direction, sweep.supervisor, TIME_SCALE["plot"]
                )
                solutions[graded.solution, direction, graded.case.name] = times
    return solutions


def of(timed, *key):
    """Return by case what was timed of a solution in a direction."""
    return {case: times for (*which, case), times in timed.items() if (*which,) == key}


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_kept_tables_are_right_in_every_row(timed, direction):
    found = of(timed, KEEPS, direction)
    assert len(found) > 1
    assert not {case: times["reason"] for case, times in found.items() if "verdict" in times}


def test_only_a_graph_of_kept_tables_has_no_time_and_the_row_says_so(timed):
    """Of few positions one may come again at the same place, so that the old table is right."""
    kept, house = of(timed, KEEPS, "forward"), of(timed, HOUSE, "forward")
    notes = [note for times in kept.values() for note in times["notes"]]
    assert notes and all("does not follow its inputs" in note for note in notes)
    many = {case.name for case in BOARD if case.positions > 100} & kept.keys()
    assert not {case for case in many if "graph" in kept[case]["gpu"]}
    assert not any(times["notes"] for times in house.values())
    assert any("graph" in times["gpu"] for times in house.values())
