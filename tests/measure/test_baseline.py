"""Eager's process beside a disturbed machine, with a probe whose times the tests choose."""

from __future__ import annotations

import itertools
import os
from types import SimpleNamespace

import pytest

from common.measure import baseline, timed_process
from common.measure.baseline import MOST, Baseline, BaselineFailed, Disturbed
from common.measure.cores import Elapsed
from common.measure.timed_process import SUSTAINED, TRIAL
from common.measure.timing import Timing
from common.records.lines import DeviceState
from common.spec import Work
from common.verdicts import Failure
from tests.support.processes import busy_child


class Worker:
    """A process whose probe takes these microseconds, one after the other.

    A call in a loop takes 60 us, and a dense product 5 us; `clock` tells the seconds.
    """

    solution, changes, pid = SimpleNamespace(peer=True), 0, 0

    def __init__(self, *times):
        self.times, self.done, self.rounds, self.clock = iter(times), [], itertools.count(1), 0.0

    def ask(self, request):
        match request.__struct_config__.tag:
            case "take_samples":
                self.order = (*request.names,)
                count = (len(request.names) + 1) * bool(request.probes)
                probes = [[next(self.times)] * request.probes for _ in range(count)]
                taken = [float(next(self.rounds))] * request.rounds if request.names else []
                samples = dict.fromkeys(request.names, taken)
                return {"samples": samples, "probes": probes}
            case "run_calls":
                self.clock += {"eager": 60e-6, "dense": 5e-6}[request.name] * request.rounds
                self.done += [(request.name, request.rounds)] * bool(request.rounds)
            case "begin_timing":
                self.done.append(request.backward)
        return {}

    def refresh(self):
        pass

    renew = release = refresh


@pytest.fixture
def of(monkeypatch):
    """Return a function that makes a baseline whose probe takes 10 us on a quiet machine."""
    monkeypatch.setattr(baseline.time, "sleep", lambda seconds: None)

    def of(*times, calibrated=("gpu", "host")):
        made = Baseline(Worker(*times), dict.fromkeys(calibrated, 10.0))
        case = SimpleNamespace(name="a", dtype="float32")
        begin(monkeypatch, made, case, "forward")
        made.worker.done.clear()
        return made

    return of


def begin(monkeypatch, made, case, direction):
    """Begin a case and direction; staging is noted."""
    staged = SimpleNamespace(calls=[{}], results={})
    monkeypatch.setattr(
        baseline, "stage_calls", lambda op, case, *_: made.worker.done.append(case.name) or staged
    )
    op = SimpleNamespace(timed_work=lambda *_: Work(0, 0))
    made.begin(SimpleNamespace(case=case, device="cuda", op=op), direction)


def test_the_probe_is_calibrated_by_its_median():
    assert baseline.calibrate(Worker(9.0, 3.0), "cuda") == {"gpu": 9.0, "host": 3.0}
    assert baseline.calibrate(Worker(), "cpu") == {}
    assert Baseline(Worker(99.0), {}).slow_probe("gpu") is None, "without a GPU no probe is slow"


@pytest.mark.parametrize("slow", [None, 0, 1, 2])
def test_a_round_beside_which_the_probe_is_slow_is_taken_again_once_it_is_quick(of, slow):
    first = [139.0 if each == slow else 10.0 for each in range(3)]
    again = [] if slow is None else [139.0, 139.0, 10.0, *[10.0] * 3]
    made = of(*first, *again)
    taken = 1.0 if slow is None else 2.0
    found = made.sampler(["eager", "copy"], "gpu")(2)
    assert found == {"eager": [taken] * 2, "copy": [taken] * 2}
    assert next(made.worker.times, None) is None, "it waited for the third probe"
    assert not made.slow_probes


@pytest.mark.parametrize(("clock", "name"), baseline.STATES.items())
def test_rounds_that_are_disturbed_each_time_are_counted_by_clock(of, clock, name):
    made = of(*[10.0, 139.0, 10.0] * MOST)
    assert made.sampler(["copy"], clock)(1) == {"copy": [MOST]}
    assert made.slow_probes == {name: 1}
    assert name in DeviceState.__annotations__


@pytest.mark.parametrize(("clock", "fine", "slow"), [("gpu", 12.4, 12.6), ("host", 14.9, 15.1)])
def test_a_probe_that_stays_slow_stops_the_clock_or_is_counted(of, clock, fine, slow):
    assert of(fine, fine).sampler(["copy"], clock)(1) == {"copy": [1.0]}
    made = of(*[slow] * (2 + MOST))
    with pytest.raises(Disturbed, match=f"the probe takes {slow} us by the {clock}'s clock"):
        made.sampler(["copy"], clock)(1)
    made = of(slow, fine, fine, fine)
    made.patient = False
    take = made.sampler(["copy"], clock)
    assert [take(1), take(1)] == [{"copy": [1.0]}, {"copy": [2.0]}]
    assert made.slow_probes.total() == 1


def test_the_contestants_have_another_order_each_time(of):
    made = of(calibrated=())
    take = made.sampler(["eager", "copy", "dense"], "gpu")
    assert len({take(1) and made.worker.order for _ in range(200)}) == 6


def test_eager_and_a_solution_are_on_one_core():
    own = os.sched_getaffinity(0)
    with busy_child() as first, busy_child() as second:
        eager, solution = Worker(*[1.0] * 9), Worker()
        eager.pid, solution.pid = first.pid, second.pid
        with Baseline(eager, {}).on_one_core(solution):
            cores = [os.sched_getaffinity(child.pid) for child in (first, second)]
        assert [os.sched_getaffinity(child.pid) for child in (first, second)] == [own] * 2
    assert cores[0] == cores[1] and len(cores[0]) == 1


# --- one process for all rows of a case -----------------------------------------------------------

A, B = (SimpleNamespace(name=name, dtype="float32") for name in "ab")


def test_a_case_is_begun_once_for_all_solutions_and_directions(of, monkeypatch):
    made = Baseline(Worker(), {})
    for _ in range(3):
        begin(monkeypatch, made, A, "forward")
        begin(monkeypatch, made, A, "backward")
    assert made.worker.done == ["a", False, True]
    begin(monkeypatch, made, B, "backward")
    assert made.worker.done[3:] == ["b", True]


@pytest.mark.parametrize("release", [True, False])
def test_a_process_that_lost_the_case_begins_anew(monkeypatch, release):
    made = Baseline(Worker(), {})
    begin(monkeypatch, made, A, "forward")
    if release:
        made.release()
    else:
        made.worker.changes += 1
    begin(monkeypatch, made, A, "forward")
    assert made.worker.done == ["a", False] * 2


def test_what_fails_to_begin_is_begun_anew(of, monkeypatch):
    made = of()
    monkeypatch.setattr(made.worker, "ask", lambda _: Failure("RUNTIME_ERROR", "no room").reply)
    with pytest.raises(BaselineFailed, match="no room"):
        begin(monkeypatch, made, B, "forward")
    monkeypatch.undo()
    begin(monkeypatch, made, B, "forward")
    assert made.worker.done == ["b", "b", False]


# --- calls that run on and on ---------------------------------------------------------------------


def test_sustained_times_are_measured_once_a_case_for_half_a_second_each(of, monkeypatch):
    made = of(10.0)
    monkeypatch.setattr(timed_process, "look", lambda pid: Elapsed(made.worker.clock, 0.0))
    for _ in range(2):
        assert made.sustained({"eager": 20.0, "dense": 5.0}) == {"eager": 60.0, "dense": 5.0}
    seconds = [{"eager": 60e-6, "dense": 5e-6}[name] * calls for name, calls in made.worker.done]
    assert seconds == pytest.approx([3 * TRIAL, SUSTAINED, TRIAL, SUSTAINED], rel=0.01)


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
def test_calls_are_timed_in_a_loop_where_arithmetic_binds_or_the_hosts_time_ranks(
    time_scale, dense, by_host, names
):
    gpu = {"solution": [5.0], "eager": [9.0], "copy": [2.0], "dense": [dense]}
    times = {"gpu": gpu, "host": {"solution": [6.0], "eager": [3.0], "no_grad": [2.0]}}
    beside = SimpleNamespace(sustained=lambda times: times)
    timed = SimpleNamespace(sustained=lambda name, expected: expected)
    longer = {"solution": 6.0, "eager": 9.0, "dense": dense}
    timing = Timing(None, None, beside, "forward", time_scale)
    in_loop = timing._sustained(timed, times, by_host)
    assert in_loop == {name: longer[name] for name in names}
