"""What the clock measures on a GPU: copies, host time by itself, replays."""

import functools
import subprocess
import sys
import time

import numpy as np
import pytest
import torch

from common.paths import ROOT
from common.sandbox import contestants
from common.sandbox.clock import Clock
from tests.sandbox.test_clock import rotation

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
pytestmark = needs_gpu
MANY = 64 << 20


ROUNDS = 30


def measured_on_gpu(slow, plain):
    """Samples of `slow` as the solution and of `plain` as eager, beside a copy of their bytes."""

    def call(function):
        x = torch.rand(MANY // 4, device="cuda", requires_grad=True)
        return (lambda: function(x)), [x], torch.rand_like(x)

    ours = Clock(rotation([call(slow), call(slow)], False), False, {})
    limits = {"copy": functools.partial(contestants.copy, 2 * MANY)}
    eager = Clock(rotation([call(plain)], False), False, limits)
    host = {
        "solution": ours.turn("solution", "host", ROUNDS),
        "eager": eager.turn("solution", "host", ROUNDS),
    }
    gpu = {
        "solution": ours.turn("solution", "gpu", ROUNDS),
        "eager": eager.turn("solution", "gpu", ROUNDS),
        "copy": eager.turn("copy", "gpu", ROUNDS),
    }
    if ours.capture():
        gpu["graph"] = ours.turn("graph", "gpu", ROUNDS)
    return {"gpu": gpu, "host": host}


def test_a_copy_added_moves_gpu_time_by_a_copy():
    gpu = measured_on_gpu(lambda x: x.clone().clone(), lambda x: x.clone())["gpu"]
    solution, eager, copy = (np.median(gpu[name]) for name in ("solution", "eager", "copy"))
    assert solution - eager == pytest.approx(copy, rel=0.1)


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


def test_a_replay_takes_as_long_as_what_it_replays():
    gpu = measured_on_gpu(lambda x: x.clone(), lambda x: x.clone())["gpu"]
    assert np.median(gpu["graph"]) == pytest.approx(np.median(gpu["eager"]), rel=0.05)


def test_what_cannot_be_captured_leaves_a_process_that_times_on():
    """In a process of its own: a capture that fails leaves torch's generator unusable."""
    script = """
import torch
from tests.sandbox.test_clock_on_gpu import measured_on_gpu

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
