"""Eager's process beside a disturbed machine, with a probe whose times the tests choose."""

from __future__ import annotations

import itertools

import pytest

from common.measure import baseline, timing
from common.measure.baseline import Baseline, BaselineFailed, Disturbed
from common.measure.timed_process import Failed
from common.measure.timing import ATTEMPTS, Forged


class Worker:
    """A process whose probe takes these microseconds, one after the other."""

    def __init__(self, *times):
        self.times, self.renewed = iter(times), 0

    def ask(self, request, clock, rounds):
        assert request == "probe"
        found = next(self.times)
        return found if isinstance(found, dict) else {"samples": [found] * rounds}

    def renew(self):
        self.renewed += 1


class Timed:
    """A timed process that answers every turn."""

    def turn(self, name, clock, burst):
        return lambda rounds: [name] * rounds


def of(*times):
    """Return a baseline whose probe takes 10 us where nothing disturbs it."""
    made = Baseline(Worker(*times), {"gpu": 10.0, "host": 10.0})
    made._timed = Timed()
    return made


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    monkeypatch.setattr(baseline.time, "sleep", lambda seconds: None)


def test_the_probe_is_calibrated_by_its_median():
    worker = Worker(9.0, 3.0)
    assert baseline.calibrate(worker, "cuda") == {"gpu": 9.0, "host": 3.0}
    assert baseline.calibrate(worker, "cpu") == {}
    assert Baseline(Worker(99.0), {}).slow_probe("gpu") is None, "without a GPU no probe is slow"


def test_a_turn_waits_until_the_probe_is_quick():
    made = of(139.0, 139.0, 10.0, 10.0)
    assert made.turn("eager", "gpu")(2) == ["solution"] * 2
    assert not made.slow_turns
    assert next(made._worker.times, None) is None, "three times before, and once after"


def test_a_turn_after_which_the_probe_is_slow_is_taken_again():
    made, taken = of(10.0, 139.0, 10.0, 10.0), []
    made._timed.turn = lambda name, clock, burst: lambda rounds: taken.append(name) or [len(taken)]
    assert made.turn("copy", "gpu")(1) == [2]


@pytest.mark.parametrize(("clock", "fine", "slow"), [("gpu", 12.4, 12.6), ("host", 14.9, 15.1)])
def test_a_probe_that_stays_slow_stops_the_clock(clock, fine, slow):
    assert of(fine, fine).turn("copy", clock)(1) == ["copy"]
    made = of(*[slow] * baseline.TRIES)
    with pytest.raises(Disturbed, match=f"the probe takes {slow} us by the {clock}'s clock"):
        made.turn("copy", clock)(1)
    made = of(slow, fine)
    made.patient = False
    take = made.turn("copy", clock)
    assert take(1) == take(1) == ["copy"]
    assert made.slow_turns == 1


@pytest.fixture
def undisturbed(monkeypatch):
    """Time a case whose attempts end as given; return the outcome and the solution's worker."""
    monkeypatch.setattr(timing.time, "sleep", lambda seconds: None)

    def run(made, *outcomes):
        left, worker = iter(outcomes), Worker()

        def attempt(*args):
            outcome = next(left)
            if isinstance(outcome, Exception):
                raise outcome
            return outcome

        monkeypatch.setattr(timing, "_time", attempt)
        return timing._undisturbed(None, worker, made, "forward", 1.0), worker

    return run


MET = Disturbed("gpu", 139.0)


def test_a_disturbance_that_ends_with_the_solution_each_time_is_the_solutions(undisturbed):
    with pytest.raises(Failed, match=r"139\.0 us by the gpu's clock beside it, 10\.0 us without"):
        undisturbed(of(*[10.0] * ATTEMPTS), *[MET] * ATTEMPTS)
    found, worker = undisturbed(of(10.0, 10.0), MET, MET, {"gpu": {}})
    assert (found, worker.renewed) == ({"gpu": {}}, 2), "twice may be chance"


def test_a_disturbance_that_goes_on_without_the_solution_is_anothers(undisturbed):
    made = of(139.0)
    found, worker = undisturbed(made, MET, {"gpu": {}})
    assert (found, worker.renewed, made.patient) == ({"gpu": {}}, 1, False)


def test_a_failure_of_eager_is_no_solutions(undisturbed):
    dead = {"verdict": "CRASHED", "reason": "the process ended by SIGKILL"}
    made = of(dead)
    with pytest.raises(BaselineFailed, match="eager's process failed: the process ended"):
        made.turn("eager", "gpu")(1)
    failed = BaselineFailed("out of memory")
    with pytest.raises(BaselineFailed):
        undisturbed(of(), *[failed] * ATTEMPTS)
    made = of()
    found, worker = undisturbed(made, failed, {"gpu": {}})
    assert (found, worker.renewed, made._worker.renewed) == ({"gpu": {}}, 0, 1)


def test_a_case_that_eager_cannot_run_leaves_a_row_without_times(monkeypatch):
    def fail(*args):
        raise BaselineFailed("eager's process failed: out of memory")

    class Released(Worker):
        def release(self):
            pass

    monkeypatch.setattr(timing, "_undisturbed", fail)
    found = timing.time_case(None, Released(), of(), "forward")
    assert found == {"unmeasured": "not timed: eager's process failed: out of memory"}


def test_a_forged_time_is_forged_each_time(undisturbed):
    forged = Forged("TAMPERED", "too short")
    with pytest.raises(Forged):
        undisturbed(of(), *[forged] * ATTEMPTS)
    found, worker = undisturbed(of(), *[forged] * (ATTEMPTS - 1), {"gpu": {}})
    assert (found, worker.renewed) == ({"gpu": {}}, 0)


def test_the_sustained_times_of_a_case_are_measured_once():
    class Long(Timed):
        inputs, runs = 2, itertools.count()

        def seconds(self, name, rounds):
            next(self.runs)
            return {"solution": 30e-6, "dense": 5e-6}[name] * rounds * self.inputs

    made = of(10.0)
    made._timed, made._case = Long(), ("case", "forward")
    for _ in range(2):
        assert made.sustained({"eager": 20.0, "dense": 4.0}) == {"eager": 30.0, "dense": 5.0}
    assert next(Long.runs) == 2
