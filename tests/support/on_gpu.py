"""Samples of two functions by the clock on a GPU, in one process."""

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
        "solution": ours.take_samples("solution", "host", ROUNDS),
        "eager": eager.take_samples("solution", "host", ROUNDS),
    }
    gpu = {
        "solution": ours.take_samples("solution", "gpu", ROUNDS),
        "eager": eager.take_samples("solution", "gpu", ROUNDS),
        "copy": eager.take_samples("copy", "gpu", ROUNDS),
    }
    if ours.capture():
        gpu["graph"] = ours.take_samples("graph", "gpu", ROUNDS)
    return {"gpu": gpu, "host": host}
