"""Samples of two functions by the clock on a GPU, in one process."""

import functools

import torch

from common.sandbox import clock
from common.sandbox.clock import Clock
from common.sandbox.rotation import Rotation, TimedCall

MANY = 64 << 20
"""Bytes of the input."""
ROUNDS = 30


def measured_on_gpu(slow, plain):
    """Samples of `slow` as the solution and of `plain` as eager, beside a copy of their bytes."""

    def call(function):
        x = torch.rand(MANY // 4, device="cuda", requires_grad=True)
        return TimedCall(lambda: function(x), [x], (torch.rand_like(x),))

    ours = Clock(Rotation([call(slow), call(slow)]), {})
    limits = {"copy": functools.partial(clock.copy, 2 * MANY)}
    eager = Clock(Rotation([call(plain)]), limits)
    samples = {
        by: {
            "solution": ours.take_samples("solution", by, ROUNDS),
            "eager": eager.take_samples("solution", by, ROUNDS),
        }
        for by in ("host", "gpu")
    }
    samples["gpu"]["copy"] = eager.take_samples("copy", "gpu", ROUNDS)
    if ours.ready("graph"):
        samples["gpu"]["graph"] = ours.take_samples("graph", "gpu", ROUNDS)
    return samples
