"""The clocks of one row: their order, their timed callables, and what a wrong result costs."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from common import ops, solutions
from common.grading.sweep import Sweep
from common.measure import limits, timing
from common.measure.timing import Timing
from tests.support import corpora as corpus

ROPE = ops.load("rope")
BY = {case.ranked_by: case for case in reversed(list(ROPE.cases("board")))}


class Timed:
    """Either process, whose calls take 100 us by either clock."""

    inputs = 2

    def __init__(self):
        self.asked = []

    def sampler(self, names, clock, burst=1):
        names = [names] if isinstance(names, str) else names

        def take(rounds):
            self.asked.append((*names, clock, rounds))
            return {name: [100.0] * rounds for name in names}

        return take

    def ready(self, name):
        self.asked.append((name, "ready"))
        return True

    def run(self, name, rounds, renew=False, call=True, wait=True):
        return 100e-6 * rounds * self.inputs * call


@pytest.fixture
def times(monkeypatch):
    """Return a function that times a case on a GPU that is not there."""
    monkeypatch.setattr(limits, "broken", lambda microseconds, work: None)

    def times(timed, ranked_by, direction):
        problem = SimpleNamespace(op=ROPE, case=BY[ranked_by], device="cuda")
        return Timing(problem, None, Timed(), direction, 1.0).times(timed)

    return times


@pytest.mark.parametrize("ranked_by", ["gpu", "host"])
@pytest.mark.parametrize(("direction", "graph"), [("forward", {"graph"}), ("backward", set())])
def test_the_clock_that_ranks_the_case_comes_last(times, ranked_by, direction, graph):
    timed = Timed()
    found = times(timed, ranked_by, direction)
    clocks = [asked[1] for asked in timed.asked if asked[0] == "solution"]
    assert clocks[-1] == ranked_by != clocks[0]
    assert set(found["gpu"]) == {"solution", "eager", "copy"} | graph
    assert set(found["host"]) == {"solution", "eager"}


# --- the results of timed calls -------------------------------------------------------------------

HALF = ops.load("rotate_half")
HOUSE = next(solution for solution in solutions.discover() if solution.name == "house/rotate_half")
GPU = {name: [1.0] for name in ("solution", "eager", "copy", "graph")}


@pytest.mark.parametrize(
    ("kind", "error"), [("graph", 0), ("graph", 1), ("solution", 1), ("long run", 1)]
)
@pytest.mark.slow
def test_a_wrong_replay_costs_the_graphs_time_and_a_wrong_call_the_verdict(
    fork_server, monkeypatch, kind, error
):
    """Time a case as on a GPU, whose kept results of one kind are wrong."""
    times = Timing.times

    def wrong(self, process):
        found, right = times(self, process), process.kept["solution"]
        process.kept[kind] = [
            (shift, {"output": results["output"] + error}) for shift, results in right
        ]
        return found | {"gpu": dict(GPU)}

    monkeypatch.setattr(Timing, "times", wrong)
    with Sweep("cpu", overlap=False, server=fork_server) as sweep:
        beside = corpus.baseline_of(sweep, HALF)
        (graded,) = sweep.grade(HALF, corpus.small(HALF), [HOUSE])
        found = timing.time_case(graded, beside, "forward", sweep.supervisor, corpus.SHORT)
    if kind != "graph":
        assert found["verdict"] == "INCORRECT_NUMERICAL"
    elif error:
        assert set(found["gpu"]) == GPU.keys() - {"graph"}
        note = "its CUDA graph does not follow its inputs: output of a timed call at ["
        assert found["notes"][0].startswith(note)
    else:
        assert set(found["gpu"]) == GPU.keys() and not found["notes"]
