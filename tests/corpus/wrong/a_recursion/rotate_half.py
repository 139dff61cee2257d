"""A device function that calls itself until it meets a number at run time.

Expected: forward=COMPILE_ERROR backward=COMPILE_ERROR
"""

import torch
import triton
import triton.language as tl


@triton.jit
def _shifted(x, row, offs, d, left):
    """Return x[(offs + left) % d], half of what is left at a time."""
    if left == 0:
        return tl.load(x + row + offs % d)
    return _shifted(x, row, offs + left - left // 2, d, left // 2)


@triton.jit
def _kernel(x, y, d, sign, BLOCK: tl.constexpr):
    row, offs = tl.program_id(0) * d, tl.arange(0, BLOCK)
    value = _shifted(x, row, offs, d, d // 2)
    tl.store(y + row + offs, tl.where(offs < d // 2, sign * value, -sign * value), offs < d)


def _launch(x, sign):
    x = x.contiguous()
    y = torch.empty_like(x)
    d = x.shape[-1]
    if rows := x.numel() // max(d, 1):
        _kernel[(rows,)](x, y, d, sign, triton.next_power_of_2(d))
    return y


class _RotateHalf(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return _launch(x, -1)

    @staticmethod
    def backward(ctx, grad):
        return _launch(grad, 1)


def rotate_half(x):
    return _RotateHalf.apply(x)
