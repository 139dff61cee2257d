"""The requests to a timed process: what must be ready before the harness's own clock starts."""

from collections import Counter
from types import SimpleNamespace

import pytest
import torch

from common.measure.timed_process import KEPT, SMALL, LaidCalls, TimedProcess

RUNS = 1000
"""With 200, chance alone would fail one run of the tests in 200."""


class Worker:
    """A process that answers every request, and the requests' names."""

    solution, pid = SimpleNamespace(peer=True), 0

    def __init__(self):
        self.asked = []

    def ask(self, request, **arguments):
        self.asked.append((request, arguments.get("backward")))
        rounds = arguments.get("rounds", 0)
        samples = [7.0] * rounds
        if request == "turns":
            return {"samples": dict.fromkeys(arguments["names"], samples), "probes": []}
        return {"samples": samples, "kept": None}


@pytest.fixture
def process():
    laid = LaidCalls(draw=None, arena=None, seeds=[], inputs=[], results={}, calls=[])
    worker = Worker()

    def begin(direction="forward", frugal=False):
        timed = TimedProcess(worker, laid, direction, frugal=frugal)
        worker.asked.clear()
        return timed, worker.asked

    return begin


class Memory:
    """An arena whose slots all hold the number of the turn."""

    turn = 0

    def tensor(self, slot):
        return torch.tensor(float(self.turn))


@pytest.mark.parametrize(("nbytes", "most"), [(SMALL, KEPT), (SMALL + 1, 1)])
def test_of_small_results_several_turns_are_kept_and_each_may_be(nbytes, most):
    kept, slots = Counter(), {"output": SimpleNamespace(nbytes=nbytes)}
    for _ in range(RUNS):
        memory, worker = Memory(), Worker()
        calls = [{"changing": {}}]
        laid = LaidCalls(draw=None, arena=memory, seeds=[3], inputs=[], results=slots, calls=calls)
        process = TimedProcess.__new__(TimedProcess)
        process._laid, process._worker, process.frugal = laid, worker, False
        process.kept, process._chances = {}, {}
        for memory.turn in range(6):
            process._keep("sample", {"kept": {"call": 0, "shift": 1}})
        found = [int(each.results["output"]) for each in process.kept["sample"]]
        assert len(found) == len({*found}) == most
        kept.update(found)
    assert {*kept} == {*range(6)}
    assert min(kept.values()) > RUNS * most / 6 / 2, "each turn has the same chance"


def names(asked):
    return [name for name, _ in asked]


def test_what_was_timed_last_is_ready_for_a_long_run(process):
    timed, asked = process()
    timed.turn("solution", "gpu")(1)
    timed.run_on("solution", 1)
    timed.run_on("solution", 1, run=False)
    assert names(asked) == ["turn", "run_on", "run_on"]


def test_a_run_that_does_not_wait_is_waited_for_before_the_next(process):
    timed, asked = process()
    timed.turn("solution", "gpu")(1)
    timed.run_on("solution", 1, wait=False)
    timed.run_on("solution", 1)
    assert names(asked) == ["turn", "run_on", "get_ready", "run_on"]


def test_another_contestant_gets_ready_before_its_long_run(process):
    timed, asked = process()
    timed.turns(["copy", "solution"], rounds=2)
    timed.run_on("solution", 1)
    timed.run_on("dense", 1)
    assert names(asked) == ["turns", "run_on", "get_ready", "run_on"]


def test_what_gives_its_memory_back_gets_ready_each_time(process):
    timed, asked = process(frugal=True)
    timed.turn("solution", "gpu")(1)
    timed.run_on("solution", 1)
    assert names(asked) == ["turn", "give_back", "get_ready", "run_on", "give_back"]


def test_each_request_says_the_direction_whose_clock_it_means(process):
    timed, asked = process("backward", frugal=True)
    timed.turn("solution", "gpu")(1)
    timed.turns(["copy"], rounds=1)
    timed.run_on("dense", 1)
    timed.capture()
    assert {direction for _, direction in asked} == {True}
