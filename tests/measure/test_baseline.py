"""Eager's process beside a disturbed machine, with a probe whose times the tests choose."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from common import wire
from common.measure import baseline, timing
from common.measure.baseline import Baseline, BaselineFailed, Disturbed, PreparedCase
from common.measure.cores import Elapsed
from common.measure.timed_process import SUSTAINED, TRIAL, Failed, TimedProcess
from common.records.lines import DeviceState
from common.spec import Work


class Worker:
    """A process whose probe takes these microseconds, one after the other."""

    changes = 0

    def __init__(self, *times):
        self.times, self.refreshed = iter(times), 0

    def ask(self, request):
        assert isinstance(request, wire.Probe)
        return {"samples": [next(self.times)] * request.rounds}

    def refresh(self):
        self.refreshed += 1

    def renew(self):
        pass

    release = renew


class Timed:
    """A timed process that answers every round of turns, with these probes beside it."""

    inputs = 2

    def __init__(self, worker):
        self.worker, self.rounds, self.lasted = worker, 0, []

    def sample_together(self, names, clock, rounds, burst, look):
        self.rounds += 1
        probes = [[next(self.worker.times)] * look for _ in range(len(names) + 1)] if look else []
        return {name: [f"{name} {self.rounds}"] * rounds for name in names}, probes

    sustained = TimedProcess.sustained

    def throughput_run(self, name, rounds):
        """Run calls that wait for the host, by far longer than the GPU's time of them."""
        self.lasted.append({"solution": 60e-6, "dense": 5e-6}[name] * rounds * self.inputs)
        return Elapsed(self.lasted[-1], 0.0)


def of(*times, calibrated=("gpu", "host")):
    """Return a baseline whose probe takes 10 us where nothing disturbs it."""
    made = Baseline(Worker(*times), dict.fromkeys(calibrated, 10.0))
    made._ready = PreparedCase("case", False, None, timed={"forward": Timed(made.worker)})
    return made


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    monkeypatch.setattr(baseline.time, "sleep", lambda seconds: None)


def test_the_probe_is_calibrated_by_its_median():
    worker = Worker(9.0, 3.0)
    assert baseline.calibrate(worker, "cuda") == {"gpu": 9.0, "host": 3.0}
    assert baseline.calibrate(worker, "cpu") == {}
    assert Baseline(Worker(99.0), {}).slow_probe("gpu") is None, "without a GPU no probe is slow"


@pytest.mark.parametrize("slow", [None, 0, 1, 2])
def test_turns_beside_which_the_probe_is_slow_are_taken_again_once_it_is_quick(slow):
    first = [139.0 if each == slow else 10.0 for each in range(3)]
    again = [] if slow is None else [139.0, 139.0, 10.0, *[10.0] * 3]
    made = of(*first, *again)
    taken = 1 if slow is None else 2
    found = made.group_sampler(["eager", "copy"], "gpu")(2)
    assert found == {"eager": [f"solution {taken}"] * 2, "copy": [f"copy {taken}"] * 2}
    assert next(made.worker.times, None) is None, "it waited for the third probe"
    assert not made.slow_probes


@pytest.mark.parametrize(("clock", "name"), baseline.STATES.items())
def test_turns_that_are_disturbed_each_time_are_counted_by_clock(clock, name):
    made = of(*[10.0, 139.0, 10.0] * baseline.TRIES)
    assert made.group_sampler(["copy"], clock)(1) == {"copy": [f"copy {baseline.TRIES}"]}
    assert made.slow_probes == {name: 1}
    assert name in DeviceState.__annotations__


@pytest.mark.parametrize(("clock", "fine", "slow"), [("gpu", 12.4, 12.6), ("host", 14.9, 15.1)])
def test_a_probe_that_stays_slow_stops_the_clock(clock, fine, slow):
    assert of(fine, fine).group_sampler(["copy"], clock)(1) == {"copy": ["copy 1"]}
    made = of(*[slow] * (2 + baseline.TRIES))
    with pytest.raises(Disturbed, match=f"the probe takes {slow} us by the {clock}'s clock"):
        made.group_sampler(["copy"], clock)(1)
    made = of(slow, fine, fine, fine)
    made.patient = False
    take = made.group_sampler(["copy"], clock)
    assert [take(1), take(1)] == [{"copy": ["copy 1"]}, {"copy": ["copy 2"]}]
    assert made.slow_probes.total() == 1


def test_the_contestants_have_another_order_each_time():
    take = of(calibrated=()).group_sampler(["eager", "copy", "dense"], "gpu")
    assert len({tuple(take(1)) for _ in range(200)}) == 6


# --- one process for all rows of a case -----------------------------------------------------------


@pytest.fixture
def begun(monkeypatch):
    """Return a function that begins on a case and direction, and what was done by then."""
    done, made = [], of()

    def begin(case, direction):
        op = SimpleNamespace(timed_work=lambda *_: Work(0, 0))
        made.begin(SimpleNamespace(case=case, device="cuda", op=op), direction)
        return done

    def timed(worker, staged, direction, limits, keep_other, **how):
        done.append((staged, direction, keep_other))
        return "timed"

    monkeypatch.setattr(
        baseline, "stage_calls", lambda op, case, *_: done.append(case) or case.name
    )
    monkeypatch.setattr(baseline, "TimedProcess", timed)
    made._ready = None
    return made, begin


A, B = (SimpleNamespace(name=name, dtype="float32") for name in "ab")


def test_a_case_is_begun_once_for_all_solutions_and_directions(begun):
    made, begin = begun
    for _ in range(3):
        begin(A, "forward")
        done = begin(A, "backward")
    assert done == [A, ("a", "forward", False), ("a", "backward", True)]
    assert begin(B, "backward")[3:] == [B, ("b", "backward", False)]
    assert made.worker.refreshed == 7


@pytest.mark.parametrize("end", [Baseline.restart, Baseline.release, None])
def test_a_process_that_lost_the_case_begins_anew(begun, end):
    made, begin = begun
    begin(A, "forward")
    if end:
        end(made)
    else:
        made.worker.changes += 1
    assert begin(A, "forward") == [A, ("a", "forward", False)] * 2


def test_what_fails_to_begin_is_begun_anew(begun, monkeypatch):
    made, begin = begun
    begin(A, "forward")

    def fail(*args, **how):
        raise Failed("RUNTIME_ERROR", "out of memory")

    monkeypatch.setattr(baseline, "stage_calls", fail)
    with pytest.raises(BaselineFailed, match="out of memory"):
        begin(B, "forward")
    assert made._ready is None


# --- calls that run on and on ---------------------------------------------------------------------


def test_sustained_times_are_measured_once_a_case_for_half_a_second_each():
    made = of(10.0)
    for _ in range(2):
        assert made.sustained({"eager": 20.0, "dense": 5.0}) == {"eager": 60.0, "dense": 5.0}
    lasted = made.ready.timed["forward"].lasted
    assert lasted == pytest.approx([3 * TRIAL, SUSTAINED, TRIAL, SUSTAINED], rel=0.01)


@pytest.mark.parametrize(
    ("time_scale", "dense", "by_host", "names"),
    [
        (1.0, 4.0, False, ["solution", "eager", "dense"]),
        (1.0, 4.0, True, ["solution", "eager", "dense"]),
        (1.0, 1.0, True, ["solution", "eager"]),
        (1.0, 1.0, False, []),
        (0.3, 4.0, True, []),
    ],
)
def test_calls_are_timed_in_a_loop_where_arithmetic_binds_or_the_host_s_time_ranks(
    monkeypatch, time_scale, dense, by_host, names
):
    made, gpu = of(10.0), {"solution": [5.0], "eager": [9.0], "copy": [2.0], "dense": [dense]}
    monkeypatch.setattr(made, "sustained", lambda times: times)
    times = {"gpu": gpu, "host": {"solution": [6.0], "eager": [3.0], "no_grad": [2.0]}}
    timed = SimpleNamespace(sustained=lambda name, expected: expected)
    longer = {"solution": 6.0, "eager": 9.0, "dense": dense}
    in_loop = timing._sustained(timed, made, times, time_scale, by_host)
    assert in_loop == {name: longer[name] for name in names}
