"""The clocks of one row: their order, their timed callables, and how long each may take."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest

from common import ops
from common.measure import baseline, limits, timing
from common.measure.baseline import Baseline
from common.measure.cores import Elapsed
from common.measure.sampling import FEWEST
from tests.support.processes import busy_child

ROPE = ops.load("rope")
BY = {case.ranked_by: case for case in reversed(list(ROPE.cases("board")))}


class Timed:
    """A process whose calls take so many microseconds by either clock."""

    inputs, low_memory = 2, False

    def __init__(self, microseconds, slow=False):
        self.each, self.slow, self.asked = microseconds, slow, []

    def sampler(self, name, clock, burst=1):
        def take(rounds):
            self.asked.append((name, clock, rounds))
            return [self.each] * rounds

        return take

    def group_sampler(self, names, clock, burst):
        return lambda rounds: {name: [self.each] * rounds for name in names}

    def capture(self):
        self.asked.append(("capture", "gpu", 0))
        return True

    def throughput_run(self, name, rounds, renew=False, run=True, wait=True):
        seconds = 1e-6 * self.each * rounds * self.inputs * run
        return Elapsed(seconds, seconds)


@pytest.fixture
def times(monkeypatch):
    """Return a function that times a case on a GPU that is not there."""
    monkeypatch.setattr(limits, "broken", lambda samples, work, dtype: None)

    def times(timed, ranked_by="gpu", direction="forward"):
        problem = SimpleNamespace(op=ROPE, case=BY[ranked_by], device="cuda")
        return timing._times(timed, timed, problem, direction, 1.0)

    return times


@pytest.mark.parametrize("ranked_by", ["gpu", "host"])
def test_the_clock_that_ranks_the_case_comes_last(times, ranked_by):
    timed = Timed(100.0)
    found = times(timed, ranked_by)
    solution = [clock for name, clock, _ in timed.asked if name == "solution"]
    assert solution[-1] == ranked_by != solution[0]
    assert set(found["gpu"]) == {"solution", "eager", "copy", "graph"}
    assert set(found["host"]) == {"solution", "eager", "no_grad"}
    backward = times(Timed(100.0), ranked_by, "backward")
    assert set(backward["gpu"]) == {"solution", "eager", "copy", "backward"}
    assert set(backward["host"]) == {"solution", "eager"}


@pytest.mark.parametrize(("ranked_by", "shared"), [("host", 1), ("gpu", 0)])
def test_eager_and_the_solution_are_on_one_core_where_the_host_ranks(
    monkeypatch, ranked_by, shared
):
    seen = []
    allowed = os.sched_getaffinity(0)
    with busy_child() as first, busy_child() as second:
        eager, solution = SimpleNamespace(pid=first.pid), SimpleNamespace(pid=second.pid)
        made = Baseline(eager, {})

        def times(*_):
            seen.extend(os.sched_getaffinity(child.pid) for child in (first, second))
            return {"host": {}}

        monkeypatch.setattr(baseline, "probe", lambda worker, clock, rounds: [1.0])
        monkeypatch.setattr(Baseline, "begin", lambda self, *_: None)
        monkeypatch.setattr(timing, "_staged", lambda *_: None)
        monkeypatch.setattr(
            timing, "TimedProcess", lambda *_, **how: SimpleNamespace(peak_memory=0)
        )
        monkeypatch.setattr(timing, "_times", times)
        monkeypatch.setattr(timing, "_sustained", lambda *_: {})
        monkeypatch.setattr(timing, "_wrong_replay", lambda *_: None)
        problem = SimpleNamespace(op=ROPE, case=BY[ranked_by], device="cpu")
        timing._time(problem, solution, made, "forward", 1.0, low_memory=False)
        assert [os.sched_getaffinity(child.pid) for child in (first, second)] == [allowed] * 2
    assert seen[0] == seen[1]
    assert len(seen[0]) == (shared or len(allowed))


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_of_a_slow_call_there_are_few_samples_and_no_parts(times, direction):
    timed = Timed(100e3, slow=True)
    found = times(timed, "gpu", direction)
    assert set(found["gpu"]) == {"solution", "eager", "copy"}
    assert set(found["host"]) == {"solution", "eager"}
    assert ("capture", "gpu", 0) not in timed.asked
    assert timed.asked[0][2] == FEWEST
