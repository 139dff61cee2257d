"""Eager's process beside a disturbed machine, with a probe whose times the tests choose."""

import os
from types import SimpleNamespace

import pytest

from common.measure import baseline, timed_process
from common.measure.baseline import LOOKED_AT, MOST, Baseline, Disturbed, quickest
from common.measure.timed_process import SUSTAINED, TRIAL
from common.measure.timing import Timing
from common.records.lines import STATES
from common.spec import Work
from tests.support.processes import busy_child


class Worker:
    """A process whose probe takes these microseconds, one after the other.

    A sample is the number of its round. A call in a loop takes 60 us, and a dense product 5 us;
    `clock` tells the seconds of all loops.
    """

    solution, changes, pid = SimpleNamespace(peer=True), 0, 0

    def __init__(self, *times):
        self.times, self.done, self.orders, self.clock = iter(times), [], [], 0.0

    def ask(self, request):
        match request.__struct_config__.tag:
            case "take_samples":
                self.orders += [(*request.names,)] * bool(request.names)
                taken = [float(len(self.orders))] * request.rounds
                count = (len(request.names) + 1) * bool(request.probes)
                probes = [[next(self.times)] * request.probes for _ in range(count)]
                return {"samples": dict.fromkeys(request.names, taken), "probes": probes}
            case "run_calls":
                self.clock += {"eager": 60e-6, "dense": 5e-6}[request.name] * request.rounds
                self.done += [(request.name, request.rounds)] * bool(request.rounds)
            case "begin_timing":
                self.done.append("backward" if request.backward else "forward")
        return {}

    def refresh(self):
        pass

    release = refresh


@pytest.fixture
def begin(monkeypatch):
    """Return a function that begins a case and direction; staging is noted."""
    monkeypatch.setattr(baseline.time, "sleep", lambda seconds: None)

    def begin(made, name="a", direction="forward"):
        staged = SimpleNamespace(calls=[{}], results={})
        stage = lambda op, case, *_: made.worker.done.append(case.name) or staged  # noqa: E731
        monkeypatch.setattr(baseline, "stage_calls", stage)
        op, case = SimpleNamespace(timed_work=lambda *_: Work(0, 0)), cases[name]
        made.begin(SimpleNamespace(case=case, device="cuda", op=op), direction)
        return made

    cases = {name: SimpleNamespace(name=name, dtype="float32") for name in "ab"}
    return begin


@pytest.fixture
def of(begin):
    """Return a function that makes a baseline whose probe takes 10 us on a quiet machine."""
    return lambda *times: begin(Baseline(Worker(*times), {"gpu": 10.0, "host": 10.0}))


QUICK, SLOW = 10.0, 139.0


@pytest.mark.parametrize("clock", STATES)
@pytest.mark.parametrize(
    ("probes", "taken", "counted"),
    [
        ([QUICK] * 3, 1, 0),
        ([SLOW, QUICK, QUICK, *[SLOW, SLOW, QUICK], *[QUICK] * 3], 2, 0),  # waits three times
        ([QUICK, SLOW, QUICK, QUICK, *[QUICK] * 3], 2, 0),
        ([QUICK, QUICK, SLOW, QUICK, *[QUICK] * 3], 2, 0),
        ([QUICK, SLOW, QUICK, QUICK] * MOST, MOST, 1),
    ],
)
def test_a_round_is_sampled_again_once_the_probe_is_quick(of, clock, probes, taken, counted):
    made = of(*probes)
    found = made.sampler(["eager", "copy"], clock)(2)
    assert found == {"eager": [taken] * 2, "copy": [taken] * 2}
    assert next(made.worker.times, None) is None, "all probes were taken"
    assert made.slow_probes == {STATES[clock]: 1} if counted else not made.slow_probes


@pytest.mark.parametrize(("clock", "fine", "slow"), [("gpu", 12.4, 12.6), ("host", 14.9, 15.1)])
def test_a_probe_that_stays_slow_stops_the_clock_or_is_counted(of, clock, fine, slow):
    assert of(fine, fine).sampler(["copy"], clock)(1) == {"copy": [1.0]}
    made = of(*[slow] * (2 + MOST))
    with pytest.raises(Disturbed, match=f"the probe takes {slow} us by the {clock}'s clock"):
        made.sampler(["copy"], clock)(1)
    made = of(slow, fine)
    made.patient = False
    assert made.sampler(["copy"], clock)(1) == {"copy": [1.0]}
    assert made.slow_probes.total() == 1


# --- one process for all rows of a case -----------------------------------------------------------


def changed(made):
    made.worker.changes += 1


@pytest.mark.parametrize("between", [Baseline.release, changed, None])
def test_a_case_is_begun_once_unless_the_process_lost_it(begin, between):
    made = Baseline(Worker(), {})
    for _ in range(3):
        begin(made, "a", "forward")
        begin(made, "a", "backward")
    assert made.worker.done == ["a", "forward", "backward"]
    if between:
        between(made)
    begin(made, "a" if between else "b", "backward")
    assert made.worker.done[3:] == ["a" if between else "b", "backward"]


# --- calls that run on and on ---------------------------------------------------------------------


def test_sustained_times_are_measured_once_a_case_for_half_a_second_each(of, monkeypatch):
    made = of(QUICK)
    made.worker.done.clear()

    clock = SimpleNamespace(perf_counter=lambda: made.worker.clock)
    monkeypatch.setattr(timed_process, "time", clock)
    for _ in range(2):
        assert made.sustained(["eager", "dense"]) == {"eager": 60.0, "dense": 5.0}
    seconds = [{"eager": 60e-6, "dense": 5e-6}[name] * calls for name, calls in made.worker.done]
    eager, dense = [60e-6, TRIAL, SUSTAINED], [5e-6, TRIAL, SUSTAINED]
    assert seconds == pytest.approx(eager + dense, rel=0.01)


@pytest.mark.parametrize(
    ("time_scale", "dense", "by_host", "names"),
    [(1.0, 4.0, False, ["solution", "one_mask", "eager", "dense"]),
     (1.0, 4.0, True, ["solution", "one_mask", "eager", "dense"]),
     (1.0, 1.0, True, ["solution", "eager"]),
     (1.0, 1.0, False, []), (0.3, 4.0, True, [])],
)  # fmt: skip
def test_calls_are_timed_in_a_loop_where_arithmetic_binds_or_the_hosts_time_ranks(
    monkeypatch, time_scale, dense, by_host, names
):
    monkeypatch.setattr("common.measure.timing.below_the_floor", lambda microseconds, work: None)
    gpu = {"solution": [5.0], "eager": [9.0], "copy": [2.0], "dense": [dense]}
    beside = SimpleNamespace(sustained=lambda names: dict.fromkeys(names, 1.0))
    problem = SimpleNamespace(case=None, op=SimpleNamespace(timed_work=lambda *_: None))
    timing = Timing(problem, None, beside, "forward", time_scale)
    timed = SimpleNamespace(sustained=lambda name, same=False: 1.0)
    assert timing.sustained(timed, gpu, by_host) == dict.fromkeys(names, 1.0)
    assert timing.sustained(timed, None, by_host) == {}, "there is no GPU"


# --- the cores of a process -----------------------------------------------------------------------


def test_eager_and_a_solution_are_on_one_core_with_all_threads_and_are_free_again():
    own, eager, solution = os.sched_getaffinity(0), Worker(*[1.0] * 9), Worker()
    with busy_child() as first, busy_child() as second:
        eager.pid, solution.pid = first.pid, second.pid

        def cores():
            folders = [f"/proc/{child.pid}/task" for child in (first, second)]
            tasks = [task for folder in folders for task in os.listdir(folder)]
            return [os.sched_getaffinity(int(task)) for task in tasks]

        with Baseline(eager, {}).on_one_core(solution):
            core, *others = cores()
            assert len(core) == 1 and others == [core] * 3
        assert cores() == [own] * 4


def test_the_quickest_core_is_where_the_probe_takes_least():
    """Of a few drawn ones, where there are more."""
    own, looked_at = os.sched_getaffinity(0), []
    with busy_child() as child:

        def probe():
            (core,) = os.sched_getaffinity(child.pid)
            looked_at.append(core)
            return 20.0 - core

        assert quickest(child.pid, probe) == max(looked_at)
    assert len({*looked_at}) == len(looked_at) == min(len(own), LOOKED_AT)
