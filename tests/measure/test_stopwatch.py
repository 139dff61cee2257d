"""The harness's own clock beside the times that a process reports: forged ones, and honest ones."""

from __future__ import annotations

import pytest

from common.measure import stopwatch
from common.measure.cores import Elapsed
from common.measure.stopwatch import Stopwatch


class Process:
    """A process whose calls take the host and the GPU so many seconds, and the changes `change`.

    `hiccups` lengthen one run after the other, and `waits` are the waits for a core in each; a call
    is `blocked` for so many seconds without the processor.
    """

    def __init__(self, host, gpu=0.0, change=0.0, hiccups=(), waits=(), blocked=0.0):
        self.host, self.gpu, self.change, self.blocked = host, gpu, change, blocked
        self.hiccups, self.waits = iter(hiccups), iter(waits)
        self.runs, self.inputs = [], 2

    def throughput_run(self, name, rounds, renew, run=True, wait=True):
        assert renew, "else a call could return an earlier one's results"
        calls = rounds * self.inputs
        self.runs.append((calls, wait))
        each = max(self.host, self.gpu) if wait else self.host
        busy = calls * (each * run + self.change)
        waited = next(self.waits, 0.0)
        wall = busy + calls * self.blocked * run + next(self.hiccups, 0.0) + waited
        return Elapsed(wall, busy, waited)


def forged(watch, reported, overhead=0.0, change=0.0):
    """What the stopwatch says; eager's changes take `change` seconds a call."""
    eager = Stopwatch(Process(1e-6, change=change), watch._ranked_by)
    eager.measure(100.0)
    eager.overhead = overhead
    return watch.forged(reported, lambda: eager)


@pytest.mark.parametrize("change", [0.0, 40e-6])
def test_a_host_time_that_is_too_short_by_the_stopwatch_is_forged(change):
    watch = Stopwatch(Process(20e-6, gpu=90e-6, change=change), "host")
    assert watch.followed_by_run(lambda rounds: [20.0] * rounds)(3) == [20.0] * 3
    assert forged(watch, 20.0) is None, "a run that does not wait has no GPU time in it"
    assert forged(watch, 20.0 / 1.29) is None
    assert "it reports 15.2 us a call" in forged(watch, 20.0 / 1.32)
    assert "takes 20 us at least" in forged(Stopwatch(Process(20e-6), "host"), 0.5)


def test_a_gpu_time_is_held_against_the_longer_of_both_by_the_stopwatch():
    watch = Stopwatch(Process(20e-6, gpu=90e-6), "gpu")
    assert forged(watch, 90.0) is forged(watch, 90.0 / 1.29) is None
    assert "takes 90 us at least" in forged(watch, 90.0 / 1.32)
    hidden = Stopwatch(Process(100e-6, gpu=90e-6), "gpu")
    assert forged(hidden, 20.0) is None, "the host is slower, so that the GPU's time does not show"


def test_the_hosts_time_is_measured_only_where_it_may_be_the_longer():
    quick, bound = Process(20e-6, gpu=90e-6), Process(200e-6, gpu=90e-6)
    for process in (quick, bound):
        assert Stopwatch(process, "gpu").followed_by_run(lambda rounds: [90.0])(1) == [90.0]
    assert {wait for _, wait in quick.runs} == {True}
    assert {wait for _, wait in bound.runs} == {True, False}


def test_slow_calls_have_a_run_beside_their_first_turn_alone():
    slow, quick = Process(1e-3, gpu=0.3), Process(20e-6, gpu=90e-6)
    for process, reported in ((slow, 3e5), (quick, 90.0)):
        take = Stopwatch(process, "gpu").followed_by_run(
            lambda rounds, each=reported: [each] * rounds
        )
        runs = [take(1) and len(process.runs) for _ in range(3)]
        assert runs == ([2, 2, 2] if process is slow else [2, 4, 6])


def test_runs_that_were_disturbed_accuse_nobody():
    late = [0.1, 0.1, 0.1, 0.0, 0.1, 0.0]
    assert forged(Stopwatch(Process(20e-6, hiccups=late), "host"), 20.0) is None
    assert forged(Stopwatch(Process(20e-6, hiccups=[0.1, 0.0] * 99), "host"), 20.0) is not None


class Slowing(Process):
    """A process on a host that is slow in all runs but the first changes: one fast second."""

    def throughput_run(self, name, rounds, renew, run=True, wait=True):
        took = super().throughput_run(name, rounds, renew, run, wait)
        slower = 1 if len(self.runs) == 2 else 1.5
        return Elapsed(slower * took.wall, slower * took.busy, took.waited)


@pytest.mark.parametrize("waits", [0.0, 0.1])
def test_a_host_whose_speed_changes_accuses_nobody(waits):
    """Else changes of 200 us in the fast second seem to leave 120 us of the slow ones to a call."""
    honest = Slowing(20e-6, change=200e-6, waits=[waits] * 99)
    assert forged(Stopwatch(honest, "host"), 30.0, change=200e-6) is None
    forging = Slowing(20e-6, change=200e-6, waits=[waits] * 99)
    why = forged(Stopwatch(forging, "host"), 20.0, change=200e-6)
    assert "takes 30 us at least" in why


def test_on_a_busy_machine_a_run_counts_by_the_processor():
    busy = {"waits": [0.1] * 999}
    assert forged(Stopwatch(Process(20e-6, **busy), "host"), 20.0 / 1.29) is None
    assert "takes 20 us at least" in forged(Stopwatch(Process(20e-6, **busy), "host"), 20.0 / 1.32)
    asleep = Stopwatch(Process(20e-6, blocked=80e-6, **busy), "host")
    assert forged(asleep, 20.0) is None, "only a quiet run shows that"


def test_a_quiet_run_counts_by_the_wall():
    watch = Stopwatch(Process(20e-6, blocked=80e-6, waits=[0.1] * 4), "host")
    for _ in range(3):
        watch.measure(20.0)
    assert "takes 100 us at least" in forged(watch, 20.0)
    assert forged(watch, 100.0) is None


def test_what_eager_takes_beyond_its_samples_is_allowed_and_asked_for_last():
    asked = []

    def eager():
        asked.append(1)
        watch = Stopwatch(Process(20e-6), "host")
        watch.look_longer(15.0)
        return watch

    assert Stopwatch(Process(20e-6), "host").forged(20.0, eager) is None and not asked
    assert Stopwatch(Process(20e-6), "host").forged(15.1 / 1.3, eager) is None and asked
    assert Stopwatch(Process(20e-6), "host").forged(14.9 / 1.3, eager) is not None


OVERHEADS = [("host", 15.0, 5.0), ("host", 25.0, 0.0), ("gpu", 15.0, 0.0)]


@pytest.mark.parametrize(("ranked_by", "reported", "overhead"), OVERHEADS)
def test_the_overhead_is_what_the_host_takes_beyond_the_report(ranked_by, reported, overhead):
    watch = Stopwatch(Process(20e-6), ranked_by)
    assert watch.overhead == 0.0, "nothing was measured"
    watch.look_longer(reported)
    assert round(watch.overhead, 6) == overhead


@pytest.mark.parametrize("ranked_by", ["host", "gpu"])
@pytest.mark.parametrize("busy", [0, 999])
def test_calls_that_do_not_show_beside_the_changes_are_no_forgery(ranked_by, busy):
    """As those of 72 us on a host that takes milliseconds to change the inputs."""
    lost = Process(-1e-6, change=1000e-6, waits=[0.1] * busy)
    assert forged(Stopwatch(lost, ranked_by), 72.0, change=1000e-6) is None


@pytest.mark.parametrize("ranked_by", ["host", "gpu"])
@pytest.mark.parametrize("change", [0.0, 100e-6])
def test_changes_that_take_longer_than_the_calls_with_them_hide_nothing(ranked_by, change):
    slow_changes = Stopwatch(Process(1000e-6, hiccups=[0.0, 0.1] * 99), ranked_by)
    assert "change more slowly than eager's" in forged(slow_changes, 100.0, change=change)


def test_nobody_foresees_the_number_of_calls():
    process = Process(20e-6)
    for _ in range(20):
        Stopwatch(process, "gpu").measure(20.0)
    assert len(set(process.runs)) == 2
    assert min(process.runs)[0] * 20.0 >= stopwatch.RUN
