"""The clocks of one row: their order, their timed callables, and what a wrong result costs."""

from types import SimpleNamespace

import pytest
import torch

from common import ops, solutions
from common.grading.sweep import Sweep
from common.measure import timing
from common.measure.timing import Timing
from common.peaks import PEAKS
from common.spec import Work
from common.verdicts import Failure
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

    def sustained(self, name, same=False):
        return 2.0 - same

    def run(self, name, rounds, renew=False, call=True, wait=True):
        return 100e-6 * rounds * self.inputs * call


@pytest.fixture
def times(monkeypatch):
    """Return a function that times a case on a GPU that is not there."""
    monkeypatch.setattr(timing, "below_the_floor", lambda microseconds, work: None)

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


# --- the floor under every time -------------------------------------------------------------------

H200 = PEAKS["NVIDIA H200"]


@pytest.fixture
def named(monkeypatch):
    """A device of this name without a cache, or with one of so many bytes."""

    def name(name, cache=0):
        properties = type("Properties", (), {"L2_cache_size": cache, "name": name})
        monkeypatch.setattr(torch.cuda, "get_device_properties", properties)

    return name


@pytest.mark.parametrize(
    ("work", "least"),
    [
        (Work(2050, 1), 1e6 * 2000 / H200.bytes_per_second),
        (Work(0, 10**15), 1e6 * 1e15 / H200.flops_per_second["bfloat16"]),
    ],
)
def test_a_known_peak_is_the_larger_of_both_and_forgives_the_cache(named, work, least):
    named("NVIDIA H200", cache=50)
    assert timing.below_the_floor(1.001 * least, work) is None
    refused = timing.below_the_floor(0.99 * least, work)
    assert refused == f"{0.99 * least:.3g} us, and NVIDIA H200 needs {least:.3g} us at its peak"


def test_a_device_of_which_nothing_is_known_has_no_floor(named):
    named("another")
    assert timing.below_the_floor(0.1, Work(48_000_000, 0)) is None


def test_a_loop_that_is_faster_than_the_device_is_refused(named):
    """Its inputs stay the same, and a solution could return a result of theirs again."""
    named("NVIDIA H200")
    baseline = SimpleNamespace(sustained=lambda names: dict.fromkeys(names, 9.0))
    op = SimpleNamespace(timed_work=lambda case, direction: work)
    problem = SimpleNamespace(op=op, case=None)
    loop = Timing(problem, None, baseline, "forward", 1.0).sustained
    gpu = {"dense": [2.0], "copy": [1.0]}
    work = Work(0, int(1e-6 * H200.flops_per_second["bfloat16"]))
    beside = {"eager": 9.0, "dense": 9.0}
    assert loop(Timed(), gpu, by_host=True) == {"solution": 2.0, "one_mask": 1.0, **beside}
    work = Work(0, 3 * work.flops)
    with pytest.raises(Failure, match=r"in a loop: 1 us, and NVIDIA H200 needs 3 us at its peak"):
        loop(Timed(), gpu, by_host=True)


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
        process.kept[kind] = [(at, {"output": kept["output"] + error}) for at, kept in right]
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
        (note,) = found["notes"]
        assert note.kind == "STALE_GRAPH"
        assert note.detail.startswith("output of a timed call at [")
    else:
        assert set(found["gpu"]) == GPU.keys() and not found["notes"]
