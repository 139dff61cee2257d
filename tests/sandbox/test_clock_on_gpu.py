"""Which calls a GPU captures."""

import subprocess
import sys

from common.paths import ROOT
from tests.support.waiting import LONGEST


def test_what_cannot_be_captured_leaves_a_process_that_times_on():
    """In a process of its own: a capture that fails leaves torch's generator unusable."""
    script = """
import torch
from tests.support.on_gpu import measured_on_gpu

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
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=LONGEST
    )
    assert ran.returncode == 0, ran.stderr
