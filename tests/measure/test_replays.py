"""A wrong replay of a CUDA graph costs the graph's time, a wrong call the verdict.

test_replays_on_gpu.py has graphs of a solution that keeps tables.
"""

import dataclasses

import pytest

from common import ops, solutions
from common.grading.sweep import Sweep
from common.measure import rows, timing
from tests.support import corpora as corpus

HALF = ops.load("rotate_half")
HOUSE = next(solution for solution in solutions.discover() if solution.name == "house/rotate_half")
GPU = {name: [1.0] for name in ("solution", "eager", "copy", "graph")}


@pytest.fixture
def timed(fork_server, monkeypatch):
    """Return a function that times a case as on a GPU, whose kept results of one kind are wrong."""

    def time(kind, error):
        times = timing.Timing._times

        def wrong(self, process):
            found, right = times(self, process), process.kept["sample"]
            process.kept[kind] = [
                dataclasses.replace(each, results={"output": each.results["output"] + error})
                for each in right
            ]
            return found | {"gpu": dict(GPU)}

        monkeypatch.setattr(timing.Timing, "_times", wrong)
        with Sweep("cpu", overlap=False, server=fork_server) as sweep:
            beside = corpus.baseline_of(sweep, HALF)
            (graded,) = sweep.grade(HALF, corpus.small(HALF), [HOUSE])
            return timing.time_case(graded, beside, "forward", sweep.supervisor, corpus.SHORT)

    return time


def row(times):
    (case,) = corpus.small(HALF)
    about = {"run": "r1", "tier": "board", "digests": ("s1", "h1"), "verdict": "PASSED"}
    return rows.record_of(HALF, case, "forward", HOUSE, **about, times=times)


@pytest.mark.slow
def test_a_graph_that_does_not_follow_its_inputs_has_no_time_and_the_row_says_so(timed):
    stale = row(timed("graph", error=1))
    (note,) = stale.notes
    assert note.startswith("its CUDA graph does not follow its inputs: output of a timed call at [")
    assert set(stale.gpu) == GPU.keys() - {"graph"}


@pytest.mark.slow
def test_a_graph_that_follows_its_inputs_keeps_its_time(timed):
    right = row(timed("graph", error=0))
    assert right.notes == () and set(right.gpu) == GPU.keys()


@pytest.mark.parametrize("kind", ["sample", "no_grad", "long run"])
@pytest.mark.slow
def test_a_call_that_does_not_follow_its_inputs_is_wrong(timed, kind):
    assert timed(kind, error=1)["verdict"] == "INCORRECT_NUMERICAL"
