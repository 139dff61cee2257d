"""The harness's own clock beside the times that a process reports: forged ones, and honest ones."""

import pytest

from common.measure import stopwatch
from common.measure.stopwatch import Stopwatch


class Process:
    """A process whose calls take the host and the GPU so many seconds, and the changes `change`.

    `hiccups` lengthen one run after the other. All runs but the first take `slowing` times as long.
    """

    def __init__(self, host, gpu=0.0, change=0.0, hiccups=(), slowing=1.0):
        self.host, self.gpu, self.change = host, gpu, change
        self.hiccups, self.slowing, self.runs, self.inputs = iter(hiccups), slowing, [], 2

    def run(self, name, rounds, renew, call=True, wait=True):
        assert renew, "else a call could return an earlier one's results"
        calls, slower = rounds * self.inputs, self.slowing if self.runs else 1.0
        self.runs.append((calls, wait))
        each = max(self.host, self.gpu) if wait else self.host
        return slower * (calls * (each * call + self.change) + next(self.hiccups, 0.0))


def forged(process, reported, ranked_by="host"):
    return Stopwatch(process, ranked_by).forged(reported)


CONSISTENT = {
    "a host time": (Process(20e-6, gpu=90e-6), 20.0 / 1.29),
    "beside changes": (Process(20e-6, change=40e-6), 20.0 / 1.29),
    "disturbed in most runs": (Process(20e-6, hiccups=[0.1] * 3 + [0.0, 0.1, 0.0]), 20.0),
    "a host that slows down": (Process(20e-6, change=200e-6, slowing=1.5), 30.0),
    "calls that do not show beside the changes": (Process(-1e-6, change=1e-3), 72.0),
}
FORGED = {
    "a host time": (Process(20e-6), 20.0 / 1.32, 20),
    "beside changes": (Process(20e-6, change=40e-6), 20.0 / 1.32, 20),
    "far below": (Process(20e-6), 0.5, 20),
    "a host that slows down": (Process(20e-6, change=200e-6, slowing=1.5), 20.0, 30),
}


@pytest.mark.parametrize(("process", "reported"), CONSISTENT.values(), ids=CONSISTENT.keys())
def test_a_time_that_the_stopwatch_allows_is_no_forgery(process, reported):
    assert forged(process, reported) is None


@pytest.mark.parametrize(("process", "reported", "least"), FORGED.values(), ids=FORGED.keys())
def test_a_host_time_that_is_too_short_by_the_stopwatch_is_forged(process, reported, least):
    assert f"takes {least} us at least" in forged(process, reported)


def test_a_gpu_time_is_held_against_the_longer_of_both_by_the_stopwatch():
    assert forged(Process(20e-6, gpu=90e-6), 90.0 / 1.29, "gpu") is None
    assert "takes 90 us at least" in forged(Process(20e-6, gpu=90e-6), 90.0 / 1.32, "gpu")
    assert forged(Process(100e-6, gpu=90e-6), 20.0, "gpu") is None, "only the host's time shows"


def test_the_hosts_time_is_measured_only_where_it_may_be_the_longer():
    for host, waits in ((20e-6, {True}), (200e-6, {True, False})):
        process = Process(host, gpu=90e-6)
        take = Stopwatch(process, "gpu").followed_by_run(lambda rounds: {"solution": [90.0]})
        assert take(1) == {"solution": [90.0]}
        assert {wait for _, wait in process.runs} == waits


def test_nobody_foresees_the_number_of_calls():
    process = Process(20e-6)
    for _ in range(20):
        Stopwatch(process, "gpu").measure(20.0)
    assert len(set(process.runs)) == 2
    assert min(process.runs)[0] * 20.0 >= stopwatch.RUN
