"""What the clock times and how; without a GPU the CPU plays its part."""

import weakref
from collections import Counter
from types import SimpleNamespace

import pytest
import torch

from common.arena import elements_of
from common.sandbox import clock
from common.sandbox.clock import COLD_CALLS, Clock
from common.sandbox.interpreter import bounds
from common.sandbox.interpreter.spans import spans_of
from common.sandbox.rotation import ALIVE, Changing, Rotation, TimedCall
from common.timed_requests import BeginTiming, TakeSamples

# --- what is timed --------------------------------------------------------------------------------


@pytest.fixture
def played(monkeypatch):
    """Let the CPU play a GPU that starts after `needed` us of spin; return its log of work."""
    state = SimpleNamespace(log=[], spins=[], needed=0)

    class Event:
        def __init__(self, enable_timing):
            self.record = lambda: state.log.append("event")
            self.query = lambda: state.spins[-1] < state.needed
            self.synchronize = lambda: state.log.append("wait")
            self.elapsed_time = lambda end: 0.25

    def sleep(cycles):
        state.spins.append(cycles / clock.CYCLES_PER_MICROSECOND)

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "_sleep", sleep)
    return state


class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, log):
        ctx.log = log
        log.append("forward")
        return 2 * x

    @staticmethod
    def backward(ctx, gradient):
        ctx.log.append("backward")
        return 2 * gradient, None


def clock_of(log, backward=False, **limits):
    def call():
        x = torch.ones(3, requires_grad=True)
        changing = [Changing(x.detach(), elements_of(x), elements_of(x).repeat(2))]
        forward = lambda: log.append(torch.is_grad_enabled()) or Double.apply(x, log)  # noqa: E731
        return TimedCall(forward, [x], (torch.ones(3),), changing)

    return Clock(Rotation([call(), call()], backward), limits)


@pytest.mark.parametrize(
    ("backward", "name", "timed"),
    [
        (False, "solution", [True, "forward"]),
        (False, "copy", ["copy"]),
        (True, "solution", [True, "forward", "backward"]),
    ],
)
def test_between_the_events_is_the_timed_part_alone(played, backward, name, timed):
    ours = clock_of(played.log, backward, copy=lambda: lambda: played.log.append("copy"))
    assert not ours.ready("graph"), "there is no GPU"
    ours.ready(name)
    played.log.clear()
    assert ours.take_samples(name, "gpu", 3) == [250.0] * 3
    queued = played.log[: played.log.index("wait")]
    start, end = (n for n, what in enumerate(queued) if what == "event")
    assert played.log[start + 1 : end] == timed
    assert played.log.count("event") == 6


@pytest.mark.parametrize(
    ("needed", "spins"), [(200, [300]), (500, [300, 600]), (99_999, [300, 600, 1000])]
)
def test_a_sample_is_repeated_until_all_was_queued_before_the_gpu_began(
    played, monkeypatch, needed, spins
):
    monkeypatch.setattr(clock, "SPINS", (300.0, 1000.0))
    ours = clock_of(played.log)
    played.needed = needed
    ours.take_samples("solution", "gpu", 1)
    assert played.spins == spins
    ours.take_samples("solution", "gpu", 1)
    assert played.spins[len(spins) :] == spins[-1:], "the next sample begins with the last spin"


def test_a_burst_is_of_half_its_calls_or_more():
    versions, x = [], torch.arange(8.0)
    changing = [Changing(x, elements_of(x), elements_of(x).repeat(2))]
    call = TimedCall(lambda: versions.append(x._version) or x.clone(), changing=changing)
    ours = Clock(Rotation([call]), {})
    versions.clear()
    assert len(ours.take_samples("solution", "host", 200, burst=6)) == 200
    assert {*Counter(versions).values()} == {1, 4, 5, 6}, "single calls wake the processor"


@pytest.fixture
def passes(monkeypatch):
    """Return a function that lets so many seconds pass, on a clock that else stands still."""
    now = [0]
    monkeypatch.setattr(clock, "time", SimpleNamespace(perf_counter_ns=lambda: now[0]))

    def passes(seconds):
        now[0] += round(seconds * 1e9)

    return passes


@pytest.mark.parametrize(("seconds", "most"), [(0.06, 1), (1e-5, clock.WARM_UP_CALLS)])
def test_slow_calls_warm_up_by_few(passes, seconds, most):
    made, slow = [], seconds > clock.LONGEST_WARM_UP / 2

    def call():
        made.append(1)
        passes(seconds)
        return torch.ones(3)

    ours = Clock(Rotation([TimedCall(call)] * 2, slots=(torch.zeros(3),)), {})
    alive = len(made) - COLD_CALLS - most
    assert alive == 2 if slow else alive >= ALIVE.start
    made.clear()
    assert ours.take_samples("solution", "host", 3) == [round(1e6 * seconds, 2)] * 3
    assert len(made) == 4 if slow else len(made) > 4, "others wake the processor"


def test_a_long_run_makes_its_calls_on_new_inputs_or_on_one_or_changes_them_alone():
    seen, calls = [], []

    def call(number):
        x = torch.arange(4.0)
        changing = [Changing(x, elements_of(x), elements_of(x).repeat(2))]

        def forward():
            seen.append(tuple(x.tolist()))
            calls.append(number)
            return x.clone()

        return TimedCall(forward, changing=changing)

    ours = Clock(Rotation([call(0), call(1)], slots=(torch.zeros(4),)), {})
    for renew, same in ((True, False), (False, False), (False, True)):
        seen.clear()
        ours.run("solution", 20, renew=renew, call=True, wait=True, same=same)
        assert len(seen) == 40
        assert len(set(seen)) > 2 if renew else len(set(seen)) <= 2 - same
        assert ours.rotation.report()["kept"]
    calls.clear()
    ours.take_samples("solution", "host", 1, burst=20)
    assert {*calls} == {0, 1}, "later samples take all inputs again"
    ours.rotation.report()
    seen.clear()
    ours.run("solution", 40, renew=True, call=False, wait=False)
    assert not seen and not ours.rotation.report()["kept"]


def test_results_of_a_run_that_does_not_wait_are_freed_after_it():
    """A sample of host time does not include it either."""
    made = []

    def call():
        result = torch.ones(3)
        made.append(weakref.ref(result))
        return result

    ours = Clock(Rotation([TimedCall(call)] * 2), {})
    made.clear()
    ours.run("solution", 3, renew=True, call=True, wait=False)
    assert len(made) == 6 and all(result() is not None for result in made)
    ours.ready("solution")
    assert all(result() is None for result in made)


def test_a_limit_has_memory_for_its_own_rounds_alone(played):
    alive, seen = [], []

    class Freed:
        """A call that leaves the list once it is freed."""

        def __init__(self, name):
            self.name = name
            alive.append(name)

        def __call__(self):
            seen.append([*alive])

        def __del__(self):
            alive.remove(self.name)

    ours = clock_of([], copy=lambda: Freed("copy"), dense=lambda: Freed("dense"))
    for name in ("copy", "dense", "solution"):
        ours.take_samples(name, "gpu", 2)
        ours.run(name, 2, renew=False, call=True, wait=True)
        assert alive == []
    once = 2 * (2 + COLD_CALLS)
    assert seen == [["copy"]] * once + [["dense"]] * once, "each in the absence of the other"


# --- the requests ---------------------------------------------------------------------------------


def test_a_timed_input_may_lie_amid_what_a_graded_calls_input_was(monkeypatch):
    """Its addresses were held against the end of the other: once in some hundred timings."""
    for name in ("Rotation", "Clock"):
        monkeypatch.setattr(clock, name, lambda *_: SimpleNamespace())
    memory = torch.zeros(64)
    bounds.WATCH.begin_call({"x": memory[:16]})
    solution = SimpleNamespace(prepare=None)
    session = SimpleNamespace(solution=solution, clocks={}, tensor=None, check_timed=None)
    clock.begin_timing(session, BeginTiming([]))
    (span,) = spans_of("x", memory[8:40], bounds.WATCH.inputs)
    assert span.holds(memory[8:40].data_ptr(), memory[40:].data_ptr())


def test_the_probe_is_sampled_before_and_after_each_callable():
    session = SimpleNamespace(clocks={True: clock_of([], True, copy=lambda: list)})
    names = ["copy", "solution"]
    for probes in (3, 0):
        request = TakeSamples("host", names, rounds=2, burst=1, probes=probes, backward=True)
        reply = clock.take_samples(session, request)
        counts = {name: len(each) for name, each in reply["samples"].items()}
        assert counts == dict.fromkeys(names, 2)
        assert [len(each) for each in reply["probes"]] == [probes] * 3 * bool(probes)
    reply = clock.take_samples(session, TakeSamples("host", probes=5))
    assert [len(each) for each in reply["probes"]] == [5]
