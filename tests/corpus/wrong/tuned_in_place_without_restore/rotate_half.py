"""A tuned kernel works in place, on a copy that its tuner does not restore after a launch.

Expected: forward=INCORRECT_NUMERICAL backward=PASSED

The tuner knows the key when backward launches the kernel.
"""

import torch
import triton
import triton.language as tl


@triton.autotune([triton.Config({}, num_warps=warps) for warps in (1, 2, 4)], key=["HALF"])
@triton.jit
def _kernel(x, SIGN: tl.constexpr, HALF: tl.constexpr, BLOCK: tl.constexpr):
    """x1, x2 = -SIGN x2, SIGN x1"""
    at = tl.program_id(0).to(tl.int64) * 2 * HALF + tl.arange(0, BLOCK)
    keep = tl.arange(0, BLOCK) < HALF
    x1, x2 = tl.load(x + at, mask=keep), tl.load(x + at + HALF, mask=keep)
    tl.store(x + at, -SIGN * x2, mask=keep)
    tl.store(x + at + HALF, SIGN * x1, mask=keep)


def _launch(x, sign):
    y, half = x.clone(memory_format=torch.contiguous_format), x.shape[-1] // 2
    if y.numel():
        _kernel[(y.numel() // (2 * half),)](y, sign, half, triton.next_power_of_2(half))
    return y


class _RotateHalf(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return _launch(x, 1)

    @staticmethod
    def backward(ctx, grad):
        return _launch(grad, -1)


def rotate_half(x):
    return _RotateHalf.apply(x)
