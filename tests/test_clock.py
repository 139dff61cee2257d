"""When the clock stops, what it times, and what is known of the device meanwhile; without a GPU."""

import itertools
import os
import random
import subprocess
import sys
import time

import numpy as np
import pytest
import torch

from common.measure import device
from common.measure.limits import PEAKS, peak_of
from common.paths import ROOT
from common.sandbox import clock, stopping
from common.sandbox.rotation import Call, Rotation

# --- the rule -------------------------------------------------------------------------------------


def noisy(count, spread, median=100.0):
    generator = np.random.default_rng(0)
    return list(generator.normal(median, spread, count))


def test_the_interval_holds_the_median_and_narrows_with_the_samples():
    widths = []
    for count in (10, 40, 160):
        samples = noisy(count, spread=3.0)
        low, high = stopping.interval(samples)
        assert low <= np.median(samples) <= high
        widths.append(high - low)
    assert widths == sorted(widths, reverse=True)
    assert widths[0] > 2 * widths[-1]


def test_the_interval_is_about_as_wide_as_theory_has_it():
    """The median of n normal values has a deviation of 1.253 sigma / sqrt(n)."""
    low, high = stopping.interval(noisy(400, spread=5.0))
    assert high - low == pytest.approx(2 * 1.96 * 1.253 * 5.0 / 20, rel=0.4)


@pytest.mark.parametrize(("precision", "enough"), [(0.002, False), (0.05, True)])
def test_samples_are_enough_once_the_interval_is_narrow(precision, enough):
    assert stopping.settled(noisy(20, spread=1.0), precision) is enough


def test_the_width_is_held_against_the_median(monkeypatch):
    monkeypatch.setattr(stopping, "interval", lambda samples: (49.0, 51.0))
    assert stopping.settled([50.0] * 20, 0.0401)
    assert not stopping.settled([50.0] * 20, 0.0399)


def test_one_contestant_that_is_not_known_keeps_all_going():
    quiet, loud = noisy(20, spread=0.1), noisy(20, spread=30.0)
    assert stopping.enough({"a": quiet, "b": quiet}, 0.01)
    assert not stopping.enough({"a": quiet, "b": loud}, 0.01)


def test_too_few_samples_are_never_enough_however_alike(monkeypatch):
    monkeypatch.setattr(stopping, "ROUNDS", range(20, 100))
    found = [stopping.enough({"a": [1.0] * count}, 0.5) for count in (0, 10, 19, 20, 25, 30)]
    assert found == [False, False, False, True, False, True]


def test_the_clock_stops_when_the_medians_are_known():
    samples = clock._sample(["a", "b"], lambda name: 7.0, seconds=60, precision=0.01)
    assert samples == {"a": [7.0] * stopping.ROUNDS.start, "b": [7.0] * stopping.ROUNDS.start}


def test_the_clock_goes_on_while_they_are_not_and_ends_at_the_most_rounds():
    values = random.Random(0)
    samples = clock._sample(["a"], lambda name: values.uniform(1, 9), 60, precision=0.01)
    assert len(samples["a"]) == stopping.ROUNDS.stop - 1


def test_the_clock_stops_when_its_time_is_up_but_not_before_the_least_rounds():
    values = itertools.cycle([1.0, 9.0, 4.0])

    def slow(name):
        time.sleep(0.01)
        return next(values)

    samples = clock._sample(["a"], slow, seconds=0.0, precision=0.01)
    assert len(samples["a"]) == stopping.ROUNDS.start


def test_nothing_goes_on_past_the_longest_whatever_is_missing(monkeypatch):
    monkeypatch.setattr(clock, "LONGEST", 0.05)

    def slower(name):
        time.sleep(0.03)
        return 1.0

    assert len(clock._sample(["a"], slower, seconds=1.0, precision=0.01)["a"]) < 4


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
    monkeypatch.setattr(clock, "_copy", lambda nbytes: lambda: timed.append("copy"))
    monkeypatch.setattr(clock, "_dense", lambda *_: lambda: timed.append("dense"))
    monkeypatch.setattr(clock, "_captured", lambda forwards: lambda: timed.append("replay"))
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
    return Rotation([Call(*call, memory=[], results={}) for call in calls], backward)


def measured(log, backward, products=((2, 2, 2),)):
    def call():
        x = torch.ones(3, requires_grad=True)
        return (lambda: Double.apply(x, log)), [x], torch.ones(3)

    return clock.measure(
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

    samples = clock.measure_alone([call()], backward=True, seconds=1.0)
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
    monkeypatch.setattr(clock, "_capture", Graph)
    return modes


def test_what_can_be_captured_is_replayed_in_turn(capturing):
    replay = clock._captured([lambda: "a", lambda: "b"])
    assert [replay(), replay(), replay()] == ["replay of a", "replay of b", "replay of a"]
    assert capturing[0] == "error" and capturing[-1] == "default"


def test_what_waits_for_the_gpu_is_not_captured_at_all(capturing, monkeypatch):
    def waits():
        raise RuntimeError("called a synchronizing CUDA operation")

    monkeypatch.setattr(clock, "_capture", lambda forward: pytest.fail("it was captured"))
    assert clock._captured([lambda: "a", waits]) is None
    assert capturing[-1] == "default"


def test_a_capture_that_fails_is_no_replay(capturing, monkeypatch):
    def fail(forward):
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(clock, "_capture", fail)
    assert clock._captured([lambda: "a"]) is None
    assert capturing[-1] == "default"


def test_inputs_are_taken_in_turn():
    turn = clock._rotation([lambda: "a", lambda: "b"])
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

    return clock.measure(
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


@needs_gpu
def test_the_devices_state_is_known_where_nvml_is():
    pytest.importorskip("pynvml")
    read = device.reader(str(torch.cuda.get_device_properties().uuid))
    assert read is not None
    with device.Monitor(read) as watch:
        measured_on_gpu(lambda x: x.clone(), lambda x: x.clone())
        time.sleep(2 * device.PERIOD)
    assert 100 < watch.state["sm_mhz"][1] < 5000
    assert 0 < watch.state["celsius"][1] < 120


# --- the device -----------------------------------------------------------------------------------


class Nvml:
    """As pynvml behaves where it may tell all but the temperature."""

    NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = "sm", "memory", "gpu"

    class NVMLError(Exception):
        pass

    @staticmethod
    def nvmlDeviceGetClockInfo(handle, which):
        return {"sm": 1980, "memory": 3201}[which]

    @classmethod
    def nvmlDeviceGetTemperature(cls, handle, which):
        raise cls.NVMLError("not supported")

    @staticmethod
    def nvmlDeviceGetCurrentClocksThrottleReasons(handle):
        return 0x04 | 0x02

    @staticmethod
    def nvmlDeviceGetComputeRunningProcesses(handle):
        return ["ours", "theirs"]


def test_a_reading_leaves_out_what_the_device_does_not_tell(monkeypatch):
    monkeypatch.setattr(device, "_holds_gpu", lambda pid: False)
    expected = {"sm_mhz": 1980, "memory_mhz": 3201, "reasons": 6, "others": 2}
    assert device.read(Nvml, "handle") == expected


def test_a_state_is_the_range_and_every_reason_that_slows():
    readings = [
        {"sm_mhz": 1980, "celsius": 40, "reasons": 0x01, "others": 0},
        {"sm_mhz": 1200, "celsius": 55, "reasons": 0x04, "others": 1},
        {"sm_mhz": 1500, "celsius": 50, "reasons": 0x40 | 0x02, "others": 0},
    ]
    assert device.summary(readings) == {
        "sm_mhz": [1200, 1980],
        "celsius": [40, 55],
        "throttled": ["power cap", "hardware thermal slowdown"],
        "others": 1,
    }
    assert device.summary([{"reasons": 0x01 | 0x02}]) == {"throttled": []}
    assert device.summary([]) == {}


def test_the_monitor_reads_while_it_is_entered_and_not_after():
    read = iter(range(1000, 9000))
    with device.Monitor(lambda: {"sm_mhz": next(read)}) as watch:
        time.sleep(3.5 * device.PERIOD)
    state = watch.state
    time.sleep(1.5 * device.PERIOD)
    assert state["sm_mhz"][0] == 1000
    assert 1001 <= state["sm_mhz"][1] <= 1003
    assert watch.state == state


def test_without_nvml_nothing_is_known():
    assert device.reader("no such device") is None
    with device.Monitor(None) as watch:
        pass
    assert watch.state == {}


def test_only_processes_that_are_not_ours_are_others(monkeypatch):
    monkeypatch.setattr(device, "_family", lambda pid: [1, 2, 3])
    monkeypatch.setattr(device, "_holds_gpu", lambda pid: pid != 3)
    assert [device.others(count) for count in (0, 1, 2, 3)] == [0, 0, 0, 1]


def test_a_family_is_a_process_with_its_descendants():
    child = subprocess.Popen(["sleep", "30"])
    try:
        family = device._family(os.getpid())
        assert {os.getpid(), child.pid} <= set(family)
        assert os.getppid() not in family
    finally:
        child.kill()
        child.wait()


def test_peaks_are_of_the_right_order_and_say_whence():
    for peak in PEAKS.values():
        assert 1e12 <= peak.bytes_per_second <= 1e13
        assert set(peak.flops_per_second) == {"float32", "bfloat16", "float16"}
        assert peak.flops_per_second["float32"] < peak.flops_per_second["bfloat16"]
        assert peak.source
    assert peak_of("NVIDIA H200").bytes_per_second == 4.8e12
    assert peak_of("a toaster") is None
