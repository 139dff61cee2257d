"""What the clock times and how; without a GPU the CPU plays its part."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from common import wire
from common.arena import elements_of
from common.sandbox import backend, clock, timed
from common.sandbox.clock import COLD_CALLS, SPINS, Clock, Probes, TimedCallable
from common.sandbox.interpreter import bounds
from common.sandbox.interpreter.spans import spans_of
from common.sandbox.rotation import ALIVE, Changing, Rotation, TimedCall

# --- what is timed --------------------------------------------------------------------------------


@pytest.fixture
def regions(monkeypatch):
    """Let the CPU play the GPU; return the work of each timed region, and the log of work."""
    log, regions = [], []

    def gpu_time(timed_callable, flush):
        timed_callable.rotation.renew()
        run = timed_callable.ready()
        log.clear()
        run()
        regions.append([*log])
        timed_callable.rotation.keep()
        return 1.0

    monkeypatch.setattr(clock, "_gpu_time", gpu_time)
    monkeypatch.setattr(clock, "_host_time", lambda run, calls, grad: (run(), 1.0 + grad)[1])
    return regions, log


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
        return TimedCall(lambda: Double.apply(x, log), [x], torch.ones(3))

    return Clock(Rotation([call(), call()], backward), backward, limits)


def test_forward_is_timed_with_its_replay_and_without_gradients(regions, monkeypatch):
    regions, log = regions
    ours = clock_of(log, copy=lambda: lambda: log.append("copy"))
    assert set(ours.callables) == {"solution", "no_grad"}
    assert not ours.ready("graph"), "there is no GPU"
    graph = SimpleNamespace(replay=lambda: log.append("replay"))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (1, 1))
    monkeypatch.setattr(Rotation, "capture", lambda _: True)
    ours.rotation._graphs = [(graph, torch.ones(3))] * 2
    assert ours.ready("graph")
    for name, ran in {"solution": "forward", "graph": "replay", "copy": "copy"}.items():
        regions.clear()
        assert ours.take_samples(name, "gpu", 3) == [1.0] * 3
        assert regions == [[ran]] * 3
    assert ours.take_samples("solution", "host", 2) == [2.0] * 2
    assert ours.take_samples("no_grad", "host", 2) == [1.0] * 2


def test_backward_is_timed_with_forward_and_alone(regions):
    regions, log = regions
    ours = clock_of(log, backward=True)
    assert set(ours.callables) == {"solution", "backward"}
    ours.take_samples("solution", "gpu", 2)
    ours.take_samples("backward", "gpu", 2)
    assert regions == [["forward", "backward"]] * 2 + [["backward"]] * 2


def test_a_burst_is_of_half_its_calls_or_more(regions, monkeypatch):
    bursts, ours = set(), clock_of([])
    monkeypatch.setattr(clock, "WAKING", 0)
    monkeypatch.setattr(clock, "_host_time", lambda run, calls, _: run() or bursts.add(calls) or 1)
    ours.take_samples("solution", "host", 200, burst=6)
    assert bursts == {4, 5, 6}


@pytest.fixture
def passes(monkeypatch):
    """Return a function that lets so many seconds pass, on a clock that else stands still."""
    now = [0]
    monkeypatch.setattr(clock, "time", SimpleNamespace(perf_counter_ns=lambda: now[0]))

    def passes(seconds):
        now[0] += round(seconds * 1e9)

    return passes


@pytest.mark.parametrize(("seconds", "most"), [(0.06, 0), (1e-5, clock.WARM_UP_CALLS)])
def test_slow_calls_warm_up_by_few(passes, seconds, most):
    made, slow = [], seconds > clock.LONGEST_WARM_UP / 2

    def call():
        made.append(1)
        passes(seconds)
        return torch.ones(3)

    ours = Clock(Rotation([TimedCall(call)] * 2, slots=(torch.zeros(3),)), False, {})
    assert ours.slow == slow
    alive = len(made) - COLD_CALLS - 2 * most
    assert alive == 2 if slow else alive >= ALIVE.start
    made.clear()
    ours.take_samples("solution", "host", 3)
    assert len(made) == 3 if slow else len(made) > 3, "others wake the processor"


def test_a_long_run_makes_its_calls_on_new_inputs_or_changes_them_alone():
    seen = []

    def call():
        x = torch.arange(4.0)
        changing = [Changing(x, elements_of(x), elements_of(x).repeat(2))]
        return TimedCall(lambda: seen.append(tuple(x.tolist())) or x.clone(), changing=changing)

    ours = Clock(Rotation([call(), call()], slots=(torch.zeros(4),)), False, {})
    for renew in (True, False):
        seen.clear()
        ours.run("solution", 20, renew=renew, call=True, wait=True)
        assert len(seen) == 40
        assert len(set(seen)) > 2 if renew else len(set(seen)) <= 2
        assert ours.rotation.delivered()
    seen.clear()
    ours.run("solution", 40, renew=True, call=False, wait=False)
    assert not seen and not ours.rotation.delivered()


def test_a_limit_has_memory_for_its_own_rounds_alone(regions):
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
    for name in ("copy", "dense"):
        ours.ready(name)
        assert alive == [name]


# --- one sample -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("needed", "spins"), [(200, [300]), (500, [300, 600]), (99_999, [300, 600, 1000])]
)
def test_a_sample_of_gpu_time_is_the_run_alone_behind_all_that_is_queued(
    monkeypatch, needed, spins
):
    """On a GPU that begins after `needed` us of spin; the next sample begins with the last spin."""
    done, spun = [], []

    class Event:
        def __init__(self, enable_timing):
            self.record = lambda: done.append("event")
            self.query = lambda: spun[-1] < needed
            self.synchronize = lambda: done.append("wait")
            self.elapsed_time = lambda end: 0.25

    monkeypatch.setattr(clock, "SPINS", (SPINS[0], 1000))
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(
        torch.cuda, "_sleep", lambda cycles: spun.append(cycles / clock.CYCLES_PER_MICROSECOND)
    )
    steps = {name: lambda name=name: done.append(name) for name in ("renew", "keep", "zero_")}
    made = TimedCallable(
        SimpleNamespace(**steps), lambda: done.append("ready") or (lambda: done.append("run"))
    )
    assert clock._gpu_time(made, SimpleNamespace(**steps)) == 250.0
    sample = ["renew", "ready", "zero_", "event", "run", "event", "keep", "wait"]
    assert (spun, done) == (spins, sample * len(spins))
    assert made.spin == spins[-1]


# --- the requests ---------------------------------------------------------------------------------


def test_a_timed_input_may_lie_amid_what_a_graded_calls_input_was(monkeypatch):
    """Its addresses were held against the end of the other: once in some hundred timings."""
    for name in ("Rotation", "Clock"):
        monkeypatch.setattr(
            timed, name, lambda *_: SimpleNamespace(slow=False, peak_memory=lambda: None)
        )
    monkeypatch.setattr(backend, "INTERPRETED", True)
    memory = torch.zeros(64)
    backend.begin_watch({"x": memory[:16]}, backwards=False)
    session = SimpleNamespace(prepare=None, clocks={}, tensor=None)
    timed.begin_timing(session, wire.BeginTiming([]))
    (span,) = spans_of("x", memory[8:40], bounds.WATCH.inputs)
    assert span.holds(memory[8:40].data_ptr(), memory[40:].data_ptr())


def test_the_probe_is_sampled_before_and_after_each_callable():
    """How steady it is, `python -m tests.generators.clocks` measures."""
    session = SimpleNamespace(probes=Probes(), clocks={True: clock_of([], backward=True)})
    names = ["backward", "solution"]
    for probes in (3, 0):
        request = wire.TakeSamples("host", names, rounds=2, burst=1, probes=probes, backward=True)
        reply = timed.take_samples(session, request)
        assert [(name, len(each)) for name, each in reply["samples"].items()] == [
            (name, 2) for name in names
        ]
        assert [len(each) for each in reply["probes"]] == [probes] * 3 * bool(probes)
    reply = timed.take_samples(session, wire.TakeSamples("host", probes=5))
    assert [len(each) for each in reply["probes"]] == [5]
