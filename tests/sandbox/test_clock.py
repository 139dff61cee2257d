"""What the clock times and how; without a GPU the CPU plays its part."""

import weakref
from types import SimpleNamespace

import pytest
import torch

from common.arena import storage_bytes
from common.sandbox import clock, timed_callables
from common.sandbox.clock import COLD_CALLS, Clock, Probes, TimedCallable
from common.sandbox.rotation import ALIVE, Changing, Rotation, TimedCall
from common.sandbox.timed_callables import Captured
from tests.support.rotations import rotation

# --- what is timed --------------------------------------------------------------------------------


@pytest.fixture
def on_cpu(monkeypatch):
    """Let the CPU play the GPU's part; return the log, and the work of each timed region."""
    timed = []

    def gpu_time(timed_callable, flush):
        timed_callable.before()
        run = timed_callable.ready()
        timed.clear()
        run()
        calls.append(list(timed))
        timed_callable.after()
        return 1.0

    calls = []
    monkeypatch.setattr(clock, "_gpu_time", gpu_time)
    monkeypatch.setattr(clock, "_host_time", lambda run, burst, grad: (run(), 1.0 + grad)[1])
    return timed, calls


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


def clock_of(log, backward, **limits):
    def call():
        x = torch.ones(3, requires_grad=True)
        return (lambda: Double.apply(x, log)), [x], torch.ones(3)

    return Clock(rotation([call(), call()], backward), backward, limits)


def test_forward_is_timed_with_its_replay_and_without_gradients(on_cpu, monkeypatch):
    log, calls = on_cpu
    ours = clock_of(log, backward=False, copy=lambda: lambda: log.append("copy"))
    assert set(ours.callables) == {"solution", "no_grad"}
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert not ours.capture()
    captured = [Captured(lambda: log.append("replay"), torch.ones(3))] * 2
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(timed_callables, "captured", lambda forwards: captured)
    assert ours.capture()
    for name, ran in {"solution": "forward", "graph": "replay", "copy": "copy"}.items():
        calls.clear()
        assert ours.take_samples(name, "gpu", 3) == [1.0] * 3
        assert calls == [[ran]] * 3
    assert ours.take_samples("solution", "host", 2) == [2.0] * 2
    assert ours.take_samples("no_grad", "host", 2) == [1.0] * 2


def test_backward_is_timed_with_forward_and_alone(on_cpu):
    log, calls = on_cpu
    ours = clock_of(log, backward=True)
    assert set(ours.callables) == {"solution", "backward"}
    ours.take_samples("solution", "gpu", 2)
    ours.take_samples("backward", "gpu", 2)
    alone = ["backward"]
    assert calls == [["forward", "backward"]] * 2 + [alone] * 2, "forward ran before the region"


def test_a_burst_is_of_half_its_calls_or_more(on_cpu, monkeypatch):
    bursts = set()
    ours = clock_of([], backward=False)
    monkeypatch.setattr(clock, "WAKING", 0)
    monkeypatch.setattr(
        clock, "_host_time", lambda run, calls, grad: run() or bursts.add(calls) or 1
    )
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

    x = torch.arange(3.0)
    changing = [Changing(x, storage_bytes(x).view(-1, 4))]
    calls = [TimedCall(call, [], x, changing)] * 2
    ours = Clock(Rotation(calls, False, slots=(torch.zeros(3),)), False, {})
    alive = len(made) - COLD_CALLS - 2 * most
    assert alive == 2 if slow else alive >= ALIVE.start
    made.clear()
    ours.take_samples("solution", "host", 3)
    assert len(made) == 3 if slow else len(made) > 3, "others wake the processor"


def test_the_gpu_spins_for_longer_than_the_host_queues_a_call(passes):
    ours = Clock(rotation([(lambda: passes(2e-3) or torch.ones(1), [], torch.ones(1))], False),
                 False, {"copy": lambda: list})  # fmt: skip
    assert ours.callables["solution"].spin == timed_callables.MARGIN * 2000
    assert ours.get_ready("copy").spin == timed_callables.QUEUING


def test_a_long_run_makes_its_calls_with_new_inputs_or_changes_them_alone():
    seen = []

    def call():
        x = torch.arange(4.0)
        changing = [Changing(x, storage_bytes(x).view(-1, 4))]
        return TimedCall(lambda: seen.append(tuple(x.tolist())) or x.clone(), [], x, changing)

    calls = [call(), call()]
    ours = Clock(Rotation(calls, backward=False, slots=(torch.zeros(4),)), False, {})
    for renew in (True, False):
        seen.clear()
        ours.throughput_run("solution", 20, renew=renew, run=True, wait=True)
        assert len(seen) == 40
        assert len(set(seen)) > 2 if renew else len(set(seen)) <= 2
    seen.clear()
    ours.throughput_run("solution", 40, renew=True, run=False, wait=False)
    assert not seen


@pytest.mark.parametrize("low_memory", [False, True])
def test_no_graph_is_alive_beside_the_next_call_of_a_long_run_where_memory_is_scarce(low_memory):
    alive, most = set(), []

    class Saves(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            most.append(len(alive))
            alive.add(id(ctx))
            weakref.finalize(ctx, alive.discard, id(ctx))
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            return gradient

    x = torch.ones(4, requires_grad=True)
    call = TimedCall(lambda: Saves.apply(x), [], torch.ones(4))
    ours = Clock(Rotation([call] * 3, backward=False, slots=(torch.zeros(4),)), False, {})
    most.clear()
    ours.throughput_run("solution", 5, renew=True, run=True, wait=True, low_memory=low_memory)
    assert (len(most), max(most)) == (15, 0 if low_memory else 2)
    assert ours.ours.delivered()


@pytest.fixture
def gpu(monkeypatch):
    """Fake a GPU that needs 500 us of spin; return the log of what is queued and awaited."""
    done = []

    class Event:
        def __init__(self, enable_timing):
            assert enable_timing

        def record(self):
            done.append("event")

        def query(self):
            return [each for each in done if isinstance(each, int)][-1] < 500 * 2000

        def synchronize(self):
            done.append("wait")

        def elapsed_time(self, end):
            return 0.25

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "_sleep", lambda cycles: done.append(cycles))
    return done


def sampled(done, **spin):
    class Flush:
        def zero_(self):
            done.append("flush")

    def ready():
        done.append("ready")
        return lambda: done.append("run")

    before, after = (lambda: done.append("before")), (lambda: done.append("after"))
    timed_callable = TimedCallable(ready, before, after, **spin)
    assert clock._gpu_time(timed_callable, Flush()) == 250.0
    return timed_callable


def sample_of(spin):
    cycles = spin * clock.CYCLES_PER_MICROSECOND
    return [cycles, "before", "ready", "flush", "event", "run", "event", "after", "wait"]


def test_a_sample_of_gpu_time_is_the_run_alone_behind_all_that_is_queued(gpu):
    sampled(gpu, spin=600)
    assert gpu == sample_of(600)


def test_a_sample_that_the_host_queued_too_late_is_taken_again_behind_a_longer_spin(gpu):
    timed_callable = sampled(gpu)
    assert gpu == sample_of(timed_callables.QUEUING) + sample_of(2 * timed_callables.QUEUING)
    assert timed_callable.spin == 2 * timed_callables.QUEUING, "the next sample begins with it"


def test_no_spin_is_longer_than_the_longest(gpu, monkeypatch):
    monkeypatch.setattr(timed_callables, "LONGEST_SPIN", 400.0)
    assert sampled(gpu).spin == 400.0
    assert gpu == sample_of(300) + sample_of(400)


@pytest.fixture
def capturing(monkeypatch):
    """Fake captures that need no GPU; return the modes that torch was set to."""
    modes = []

    class Graph:
        def __init__(self, forward):
            self.forward = forward

        def replay(self):
            return f"replay of {self.forward()}"

    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", modes.append)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(timed_callables, "_capture", Graph)
    return modes


def test_a_replay_of_each_call_is_captured(capturing):
    captured = timed_callables.captured([lambda: "a", lambda: "b"])
    assert [each.replay() for each in captured] == ["replay of a", "replay of b"]
    assert capturing[0] == "error" and capturing[-1] == "default"


def test_what_waits_for_the_gpu_or_fails_in_its_capture_is_no_replay(capturing, monkeypatch):
    def waits():
        raise RuntimeError("called a synchronizing CUDA operation")

    def fail(forward):
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(timed_callables, "_capture", lambda forward: pytest.fail("it was captured"))
    assert timed_callables.captured([lambda: "a", waits]) == []
    monkeypatch.setattr(timed_callables, "_capture", fail)
    assert timed_callables.captured([lambda: "a"]) == []
    assert capturing[-1] == "default"


def test_host_time_without_gradients_builds_no_graph(passes):
    x, seen = torch.ones(3, requires_grad=True), []

    def run():
        seen.append((2 * x).requires_grad)
        passes(4e-6)

    assert [clock._host_time(run, 3, grad) for grad in (True, False)] == [4.0, 4.0]
    assert seen == [True] * 3 + [False] * 3


def test_a_probe_is_of_a_number_of_launches(passes):
    """How steady it is, `python -m tests.generators.clocks` measures."""
    probes, launched = Probes(), []
    assert probes._host().tolist() == [1.0] * 8
    probes._host = lambda: launched.append(1) or passes(3e-6)
    assert probes.take("host", 5) == [3.0] * 5
    assert len(launched) == 5 * clock.PROBE_BURST


# --- memory that is given back --------------------------------------------------------------------


def calls_of(log, limits=None):
    slots = (torch.zeros(4),)
    call = TimedCall(lambda: log.append("call") or torch.ones(4), [], torch.ones(4))
    return Clock(Rotation([call, call], backward=False, slots=slots), False, limits or {})


@pytest.fixture
def counted(monkeypatch):
    """Let a sample be a call; return the number of samples so far."""
    taken = []

    def gpu_time(timed_callable, flush):
        timed_callable.before()
        timed_callable.ready()()
        timed_callable.after()
        taken.append(1)
        return 1.0

    monkeypatch.setattr(clock, "_gpu_time", gpu_time)
    return taken


def test_untimed_calls_come_first_where_the_memory_was_given_back(counted):
    """And none of them is kept."""
    log = []
    ours = calls_of(log)
    for cold in (False, True, False):
        if cold:
            ours.give_back()
            assert not ours.ours._alive
            ours.get_ready("solution")
            assert ours.ours.delivered() is None
            ours.give_back()
        log.clear(), counted.clear()
        ours.take_samples("solution", "gpu", 3)
        assert (len(counted), len(log)) == (3, 3 + COLD_CALLS * cold)


@pytest.mark.parametrize(
    "use",
    [
        lambda ours, name: ours.take_samples(name, "gpu", 2),
        lambda ours, name: ours.throughput_run(name, 2, renew=False, run=True, wait=True),
    ],
)
def test_a_limit_has_memory_for_its_own_turns_alone(counted, use):
    alive, seen = [], []

    def limit(name):
        def make():
            alive.append(name)
            return Freed(alive, name, seen)

        return make

    ours = calls_of([], {"copy": limit("copy"), "dense": limit("dense")})
    for name in ("copy", "copy", "dense", "solution"):
        use(ours, name)
        assert alive == []
    assert seen == ["copy"] * 2 * (2 + COLD_CALLS) + ["dense"] * (2 + COLD_CALLS)
    ours.get_ready("copy")
    assert alive == ["copy"]
    ours.get_ready("dense")
    assert alive == ["dense"]
    ours.give_back()
    assert alive == []


class Freed:
    """A call that leaves the list once it is freed."""

    def __init__(self, alive, name, seen):
        self.alive, self.name, self.seen = alive, name, seen

    def __call__(self):
        assert self.alive == [self.name], "allocated before the other was freed"
        self.seen.append(self.name)

    def __del__(self):
        self.alive.remove(self.name)
