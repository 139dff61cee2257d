"""A sum that begins as an integer and becomes a block of floats in a loop.

Expected: forward=COMPILE_ERROR backward=COMPILE_ERROR
"""

import torch
import triton
import triton.language as tl


@triton.jit
def _kernel(x, y, d, sign, BLOCK: tl.constexpr):
    row, offs = tl.program_id(0) * d, tl.arange(0, BLOCK)
    total = 0
    for shift in range(d // 2, d // 2 + 1):
        total += tl.load(x + row + (offs + shift) % d, offs < d)
    tl.store(y + row + offs, tl.where(offs < d // 2, sign * total, -sign * total), offs < d)


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
