"""Which calls a GPU captures."""

import sys

from common.paths import ROOT
from tests.support.processes import run


def test_what_cannot_be_captured_leaves_a_process_that_times_on():
    """In a process of its own: a capture that fails leaves torch's generator unusable."""
    script = """
import torch
from common.sandbox.clock import Clock
from common.sandbox.rotation import Rotation, TimedCall

def is_captured(function):
    def call():
        x = torch.rand(16 << 20, device="cuda", requires_grad=True)
        return TimedCall(lambda: function(x), [x], (torch.rand_like(x),))

    clock = Clock(Rotation([call(), call()]), {})
    captured = clock.ready("graph")
    for name, by in (("solution", "host"), ("solution", "gpu"), *[("graph", "gpu")] * captured):
        assert min(clock.take_samples(name, by, 30)) > 0
    return captured

def waits_unseen(x):
    torch.cuda.synchronize()
    return x.clone()

assert is_captured(torch.clone)
assert not is_captured(lambda x: x * x.sum().item())
torch.rand = lambda *size, **how: torch.ones(*size, **how)
torch.rand_like = torch.ones_like
before = torch.cuda.current_stream()
for _ in range(2):
    assert not is_captured(waits_unseen)
    assert torch.cuda.current_stream() == before
"""
    ran = run(sys.executable, "-c", script, cwd=ROOT)
    assert ran.returncode == 0, ran.stderr
