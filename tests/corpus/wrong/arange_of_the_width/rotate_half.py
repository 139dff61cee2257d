"""A range as wide as the row, which may be no power of two.

Expected: forward=COMPILE_ERROR backward=COMPILE_ERROR
"""

import torch
import triton
import triton.language as tl


@triton.jit
def _kernel(x, y, d, sign, D: tl.constexpr):
    row, offs = tl.program_id(0) * d, tl.arange(0, D)
    value = tl.load(x + row + (offs + D // 2) % D)
    tl.store(y + row + offs, tl.where(offs < D // 2, sign * value, -sign * value))


def _launch(x, sign):
    x = x.contiguous()
    y = torch.empty_like(x)
    d = x.shape[-1]
    if rows := x.numel() // max(d, 1):
        _kernel[(rows,)](x, y, d, sign, d)
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
