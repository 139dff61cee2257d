"""Eager's process beside a disturbed machine, with a probe whose times the tests choose."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import pytest

from common import ops
from common.grading.memory import Memory
from common.grading.room import Room
from common.measure import baseline, timing
from common.measure.baseline import (
    SUSTAINED,
    TRIAL,
    Baseline,
    BaselineFailed,
    Disturbed,
    Ready,
    sustained,
)
from common.measure.cores import Elapsed
from common.measure.timed_process import Failed
from common.measure.timing import ATTEMPTS, Forged
from common.records.lines import State
from common.spec import Work

HALF = ops.load("rotate_half")
PROBLEM = SimpleNamespace(op=HALF, case=next(HALF.cases("smoke")))
ROOM = Room(Memory(lambda: 1 << 50))


class Worker:
    """A process whose probe takes these microseconds, one after the other."""

    changes = 0

    def __init__(self, *times):
        self.times, self.renewed, self.refreshed, self.released = iter(times), 0, 0, 0

    def ask(self, request, clock, rounds):
        assert request == "probe"
        found = next(self.times)
        return found if isinstance(found, dict) else {"samples": [found] * rounds}

    def renew(self):
        self.renewed += 1

    def refresh(self):
        self.refreshed += 1

    def release(self):
        self.released += 1


class Timed:
    """A timed process that answers every round of turns, with these probes beside it."""

    def __init__(self, worker):
        self.worker, self.rounds = worker, 0

    def turns(self, names, clock, rounds, burst, look):
        self.rounds += 1
        probes = [[next(self.worker.times)] * look for _ in range(len(names) + 1)] if look else []
        return {name: [f"{name} {self.rounds}"] * rounds for name in names}, probes


def of(*times):
    """Return a baseline whose probe takes 10 us where nothing disturbs it."""
    made = Baseline(Worker(*times), {"gpu": 10.0, "host": 10.0})
    made._ready = Ready("case", False, None, timed={"forward": Timed(made._worker)})
    return made


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    monkeypatch.setattr(baseline.time, "sleep", lambda seconds: None)


def test_the_probe_is_calibrated_by_its_median():
    worker = Worker(9.0, 3.0)
    assert baseline.calibrate(worker, "cuda") == {"gpu": 9.0, "host": 3.0}
    assert baseline.calibrate(worker, "cpu") == {}
    assert Baseline(Worker(99.0), {}).slow_probe("gpu") is None, "without a GPU no probe is slow"


def test_turns_beside_which_the_probe_is_quick_are_taken_at_once():
    made = of(10.0, 10.0, 10.0)
    found = made.turns(["eager", "copy"], "gpu")(2)
    assert found == {"eager": ["solution 1"] * 2, "copy": ["copy 1"] * 2}
    assert next(made._worker.times, None) is None, "before, between and after them"
    assert not made.slow_probes


@pytest.mark.parametrize("slow", range(3))
def test_turns_beside_which_the_probe_is_slow_are_taken_again_once_it_is_quick(slow):
    first = [139.0 if each == slow else 10.0 for each in range(3)]
    made = of(*first, 139.0, 139.0, 10.0, *[10.0] * 3)
    assert made.turns(["eager", "copy"], "gpu")(1)["copy"] == ["copy 2"]
    assert next(made._worker.times, None) is None, "it waited for the third probe"
    assert not made.slow_probes


@pytest.mark.parametrize(("clock", "name"), baseline.STATES.items())
def test_turns_that_are_disturbed_each_time_are_counted_by_clock(clock, name):
    made = of(*[10.0, 139.0, 10.0] * baseline.TRIES)
    assert made.turns(["copy"], clock)(1) == {"copy": [f"copy {baseline.TRIES}"]}
    assert made.slow_probes == {name: 1}
    assert name in State.__annotations__


@pytest.mark.parametrize(("clock", "fine", "slow"), [("gpu", 12.4, 12.6), ("host", 14.9, 15.1)])
def test_a_probe_that_stays_slow_stops_the_clock(clock, fine, slow):
    assert of(fine, fine).turns(["copy"], clock)(1) == {"copy": ["copy 1"]}
    made = of(*[slow] * (2 + baseline.TRIES))
    with pytest.raises(Disturbed, match=f"the probe takes {slow} us by the {clock}'s clock"):
        made.turns(["copy"], clock)(1)
    made = of(slow, fine, fine, fine)
    made.patient = False
    take = made.turns(["copy"], clock)
    assert [take(1), take(1)] == [{"copy": ["copy 1"]}, {"copy": ["copy 2"]}]
    assert made.slow_probes.total() == 1


def test_the_contestants_have_another_order_each_time():
    made = Baseline(Worker(), {})
    made._ready = Ready("case", False, None, timed={"forward": Timed(made._worker)})
    take = made.turns(["eager", "copy", "dense"], "gpu")
    assert len({tuple(take(1)) for _ in range(200)}) == 6


# --- one process for all rows of a case -----------------------------------------------------------


@pytest.fixture
def begun(monkeypatch):
    """Return a function that begins on a case and direction, and what was done by then."""
    done, made = [], of()

    def begin(case, direction):
        problem = SimpleNamespace(case=case, device="cuda", op=None)
        made.begin(problem, direction, Work(0, 0))
        return done

    def timed(worker, laid, direction, limits, beside, **how):
        done.append((laid, direction, beside))
        return "timed"

    monkeypatch.setattr(baseline, "lay_calls", lambda op, case, *_: done.append(case) or case.name)
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
    assert made._worker.refreshed == 7


@pytest.mark.parametrize("end", [Baseline.restart, Baseline.release, None])
def test_a_process_that_lost_the_case_begins_anew(begun, end):
    made, begin = begun
    begin(A, "forward")
    if end:
        end(made)
    else:
        made._worker.changes += 1
    assert begin(A, "forward") == [A, ("a", "forward", False)] * 2


def test_what_fails_to_begin_is_begun_anew(begun, monkeypatch):
    made, begin = begun
    begin(A, "forward")

    def fail(*args, **how):
        raise Failed("RUNTIME_ERROR", "out of memory")

    monkeypatch.setattr(baseline, "lay_calls", fail)
    with pytest.raises(BaselineFailed, match="out of memory"):
        begin(B, "forward")
    assert made._ready is None


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

        return timing._undisturbed(attempt, worker, made), worker

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
        made.slow_probe("gpu")
    failed = BaselineFailed("it ended")
    with pytest.raises(BaselineFailed):
        undisturbed(of(), *[failed] * ATTEMPTS)
    made = of()
    found, worker = undisturbed(made, failed, {"gpu": {}})
    assert (found, worker.renewed, made._worker.renewed) == ({"gpu": {}}, 0, 1)


def test_a_case_that_eager_cannot_run_leaves_a_row_without_times(monkeypatch):
    def fail(*args):
        raise BaselineFailed("eager's process failed: it ended")

    monkeypatch.setattr(timing, "_undisturbed", fail)
    found = timing.time_case(PROBLEM, Worker(), of(), "forward", ROOM)
    assert found == {"unmeasured": "not timed: eager's process failed: it ended"}


def test_a_forged_time_is_forged_each_time(undisturbed):
    forged = Forged("TAMPERED", "too short")
    with pytest.raises(Forged):
        undisturbed(of(), *[forged] * ATTEMPTS)
    found, worker = undisturbed(of(), *[forged] * (ATTEMPTS - 1), {"gpu": {}})
    assert (found, worker.renewed) == ({"gpu": {}}, 0)


def test_the_sustained_times_of_a_case_are_measured_once():
    class Long:
        inputs, runs = 2, itertools.count()

        def run_on(self, name, rounds):
            next(self.runs)
            return Elapsed({"solution": 30e-6, "dense": 5e-6}[name] * rounds * self.inputs, 0.0)

    made = of(10.0)
    made._ready = Ready("case", False, None, timed={"forward": Long()})
    for _ in range(2):
        assert made.sustained({"eager": 20.0, "dense": 4.0}) == {"eager": 30.0, "dense": 5.0}
    assert next(Long.runs) == 4


def test_a_sustained_run_lasts_half_a_second_though_its_calls_wait_for_the_host():
    class HostBound:
        inputs, lasted = 2, []

        def run_on(self, name, rounds):
            self.lasted.append(60e-6 * rounds * self.inputs)
            return Elapsed(self.lasted[-1], 0.0)

    assert sustained(HostBound(), "solution", 20.0) == 60.0
    assert HostBound.lasted == pytest.approx([3 * TRIAL, SUSTAINED], rel=0.01)


@pytest.mark.parametrize(
    ("patience", "dense", "lasts"), [(1.0, 4.0, True), (1.0, 1.0, False), (0.3, 4.0, False)]
)
def test_calls_run_on_where_arithmetic_binds_a_case_of_the_board(
    monkeypatch, patience, dense, lasts
):
    made, gpu = of(10.0), {"solution": [5.0], "eager": [9.0], "copy": [2.0], "dense": [dense]}
    monkeypatch.setattr(made, "sustained", lambda times: times)
    monkeypatch.setattr(timing, "sustained", lambda timed, name, expected: 6.0)
    found = {"solution": 6.0, "eager": 9.0, "dense": dense} if lasts else {}
    assert timing._sustained(None, made, gpu, patience) == found
