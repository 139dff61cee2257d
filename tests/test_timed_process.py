"""The requests to a timed process: what must be ready before the harness's own clock starts."""

from types import SimpleNamespace

import pytest

from common.measure.timed_process import LaidCalls, TimedProcess


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
