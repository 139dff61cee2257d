"""What the clock measures on a GPU of two functions beside each other."""

import functools

import torch

from common.sandbox import timed_callables
from common.sandbox.clock import Clock
from tests.support.rotations import rotation

MANY = 64 << 20
"""Bytes of the input."""
ROUNDS = 30


def measured_on_gpu(slow, plain):
    """Samples of `slow` as the solution and of `plain` as eager, beside a copy of their bytes."""

    def call(function):
        x = torch.rand(MANY // 4, device="cuda", requires_grad=True)
        return (lambda: function(x)), [x], torch.rand_like(x)

    ours = Clock(rotation([call(slow), call(slow)], False), False, {})
    limits = {"copy": functools.partial(timed_callables.copy, 2 * MANY)}
    eager = Clock(rotation([call(plain)], False), False, limits)
    host = {
        "solution": ours.sampler("solution", "host", ROUNDS),
        "eager": eager.sampler("solution", "host", ROUNDS),
    }
    gpu = {
        "solution": ours.sampler("solution", "gpu", ROUNDS),
        "eager": eager.sampler("solution", "gpu", ROUNDS),
        "copy": eager.sampler("copy", "gpu", ROUNDS),
    }
    if ours.capture():
        gpu["graph"] = ours.sampler("graph", "gpu", ROUNDS)
    return {"gpu": gpu, "host": host}
