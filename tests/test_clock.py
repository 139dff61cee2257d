"""What the clock times and how; without a GPU the CPU plays its part."""

import subprocess
import sys
import time

import numpy as np
import pytest
import torch

from common.paths import ROOT
from common.sandbox import clock, contestants, stopping
from common.sandbox.rotation import Rotation, TimedCall

# --- what is timed --------------------------------------------------------------------------------


@pytest.fixture
def on_cpu(monkeypatch):
    """The clock with a GPU's part played by the CPU; returns what was run in timed regions."""
    timed = []

    def gpu_time(ready, flush, spin, before, after):
        before()
        run = ready()
        timed.clear()
        run()
        calls.append(list(timed))
        after()
        return 1.0

    calls = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(clock, "_gpu_time", gpu_time)
    monkeypatch.setattr(clock, "_twice_the_l2", lambda: None)
    monkeypatch.setattr(contestants, "copy", lambda nbytes: lambda: timed.append("copy"))
    monkeypatch.setattr(contestants, "dense", lambda *_: lambda: timed.append("dense"))
    monkeypatch.setattr(contestants, "captured", lambda forwards: lambda: timed.append("replay"))
    monkeypatch.setattr(clock, "_host_time", lambda run, burst, grad: 1.0 if grad else 0.5)
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


def rotation(calls, backward):
    """Calls whose inputs do not change and whose results nobody asks for."""
    return Rotation([TimedCall(*call, memory=[], results={}) for call in calls], backward)


def measured(log, backward, products=((2, 2, 2),)):
    def call():
        x = torch.ones(3, requires_grad=True)
        return (lambda: Double.apply(x, log)), [x], torch.ones(3)

    return clock.take_samples(
        rotation([call(), call()], backward),
        rotation([call()], backward),
        backward=backward,
        copy_bytes=8,
        products=list(products),
        dtype="float32",
        seconds={"gpu": 1.0, "host": 1.0},
        burst=1,
    )


def test_forward_is_timed_with_its_replay_and_without_gradients(on_cpu):
    log, calls = on_cpu
    samples = measured(log, backward=False)
    assert set(samples["gpu"]) == {"solution", "eager", "copy", "dense", "graph"}
    assert set(samples["host"]) == {"solution", "eager", "no_grad"}
    assert set(samples["host"]["no_grad"]) == {0.5}
    assert ["forward"] in calls and ["replay"] in calls
    assert not any("backward" in ran for ran in calls)


def test_backward_is_timed_with_forward_and_alone(on_cpu):
    log, calls = on_cpu
    samples = measured(log, backward=True, products=())
    assert set(samples["gpu"]) == {"solution", "eager", "copy", "backward"}
    assert set(samples["host"]) == {"solution", "eager"}
    rounds = stopping.ROUNDS.start
    assert calls.count(["forward", "backward"]) == 2 * rounds
    assert calls.count(["backward"]) == rounds, "forward ran before the timed region"


def test_a_solution_by_itself_is_timed_alike(on_cpu):
    log, calls = on_cpu

    def call():
        x = torch.ones(3, requires_grad=True)
        return (lambda: Double.apply(x, log)), [x], torch.ones(3)

    samples = clock.take_samples_alone([call()], backward=True, seconds=1.0)
    assert samples == [1.0] * stopping.ROUNDS.start
    assert calls == [["forward", "backward"]] * stopping.ROUNDS.start


def test_a_sample_of_gpu_time_is_the_run_alone_behind_all_that_is_queued(monkeypatch):
    done = []

    class Event:
        def __init__(self, enable_timing):
            assert enable_timing

        def record(self):
            done.append("event")

        def synchronize(self):
            done.append("wait")

        def elapsed_time(self, end):
            return 0.25

    class Flush:
        def zero_(self):
            done.append("flush")

    def ready():
        done.append("ready")
        return lambda: done.append("run")

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "_sleep", lambda cycles: done.append(cycles))
    before, after = (lambda: done.append("before")), (lambda: done.append("after"))
    assert clock._gpu_time(ready, Flush(), 3.0, before, after) == 250.0
    cycles = 3 * clock.CYCLES_PER_MICROSECOND
    queued = [cycles, "before", "ready", "flush", "event", "run", "event", "after", "wait"]
    assert done == queued


@pytest.fixture
def capturing(monkeypatch):
    """Captures that need no GPU; the modes that torch was set to."""
    modes = []

    class Graph:
        def __init__(self, forward):
            self.forward = forward

        def replay(self):
            return f"replay of {self.forward()}"

    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", modes.append)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(contestants, "_capture", Graph)
    return modes


def test_what_can_be_captured_is_replayed_in_turn(capturing):
    replay = contestants.captured([lambda: "a", lambda: "b"])
    assert [replay(), replay(), replay()] == ["replay of a", "replay of b", "replay of a"]
    assert capturing[0] == "error" and capturing[-1] == "default"


def test_what_waits_for_the_gpu_is_not_captured_at_all(capturing, monkeypatch):
    def waits():
        raise RuntimeError("called a synchronizing CUDA operation")

    monkeypatch.setattr(contestants, "_capture", lambda forward: pytest.fail("it was captured"))
    assert contestants.captured([lambda: "a", waits]) is None
    assert capturing[-1] == "default"


def test_a_capture_that_fails_is_no_replay(capturing, monkeypatch):
    def fail(forward):
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(contestants, "_capture", fail)
    assert contestants.captured([lambda: "a"]) is None
    assert capturing[-1] == "default"


def test_inputs_are_taken_in_turn():
    turn = contestants.in_turn([lambda: "a", lambda: "b"])
    assert [turn() for _ in range(5)] == ["a", "b", "a", "b", "a"]


def test_host_time_without_gradients_builds_no_graph(monkeypatch):
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    x, seen = torch.ones(3, requires_grad=True), []
    for grad in (True, False):
        assert clock._host_time(lambda: seen.append((2 * x).requires_grad), 3, grad) > 0
    with_grad = seen.count(True)
    assert with_grad in (2, 3) and seen.count(False) in (2, 3), "half the burst or more"
    assert seen == sorted(seen, reverse=True)


# --- on a GPU -------------------------------------------------------------------------------------

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
MANY = 64 << 20


def measured_on_gpu(slow, plain):
    """Samples of `slow` as the solution and of `plain` as eager, beside a copy of their bytes."""

    def call(function):
        x = torch.rand(MANY // 4, device="cuda", requires_grad=True)
        return (lambda: function(x)), [x], torch.rand_like(x)

    return clock.take_samples(
        rotation([call(slow), call(slow)], backward=False),
        rotation([call(plain)], backward=False),
        backward=False,
        copy_bytes=2 * MANY,
        products=[],
        dtype="float32",
        seconds={"gpu": 1.0, "host": 1.0},
        burst=1,
    )


@needs_gpu
def test_a_copy_added_moves_gpu_time_by_a_copy():
    gpu = measured_on_gpu(lambda x: x.clone().clone(), lambda x: x.clone())["gpu"]
    solution, eager, copy = (np.median(gpu[name]) for name in ("solution", "eager", "copy"))
    assert solution - eager == pytest.approx(copy, rel=0.1)


@needs_gpu
def test_who_queues_more_slowly_moves_in_host_time_alone():
    late = 400e-6

    def slow(x):
        time.sleep(late)
        return x.clone()

    samples = measured_on_gpu(slow, lambda x: x.clone())
    host = {name: np.median(values) for name, values in samples["host"].items()}
    gpu = {name: np.median(values) for name, values in samples["gpu"].items()}
    assert host["solution"] - host["eager"] >= 1e6 * late
    assert gpu["solution"] == pytest.approx(gpu["eager"], rel=0.03)


@needs_gpu
def test_a_replay_takes_as_long_as_what_it_replays():
    gpu = measured_on_gpu(lambda x: x.clone(), lambda x: x.clone())["gpu"]
    assert np.median(gpu["graph"]) == pytest.approx(np.median(gpu["eager"]), rel=0.05)


@needs_gpu
def test_what_cannot_be_captured_leaves_a_process_that_times_on():
    """In a process of its own: a capture that fails leaves torch's generator unusable."""
    script = """
import torch
from tests.test_clock import measured_on_gpu

def clone(x):
    return x.clone()

def waits(x):
    return x * x.sum().item()

def waits_unseen(x):
    torch.cuda.synchronize()
    return x.clone()

x = measured_on_gpu(clone, clone)
assert "graph" in x["gpu"]
assert "graph" not in measured_on_gpu(waits, clone)["gpu"]
torch.rand = lambda *size, **how: torch.ones(*size, **how)
torch.rand_like = torch.ones_like
before = torch.cuda.current_stream()
for _ in range(2):
    assert "graph" not in measured_on_gpu(waits_unseen, clone)["gpu"]
    assert torch.cuda.current_stream() == before
"""
    ran = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=300
    )
    assert ran.returncode == 0, ran.stderr
