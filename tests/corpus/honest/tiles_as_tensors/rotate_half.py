"""A persistent loop casts its variable to 64 bits; a boolean that is no constant gives the sign."""

import torch
import triton
import triton.language as tl


@triton.jit
def _row(row, half):
    return row.to(tl.int64) * 2 * half


@triton.jit
def _kernel(x, y, rows, half, back, BLOCK: tl.constexpr):
    sign = tl.where(back, -1.0, 1.0)
    for row in tl.range(tl.program_id(0), rows, tl.num_programs(0), num_stages=2):
        for first in range(0, half, BLOCK):
            col = first.to(tl.int64) + tl.arange(0, BLOCK)
            at = _row(row, half) + col
            x1, x2 = tl.load(x + at, col < half), tl.load(x + at + half, col < half)
            tl.store(y + at, -sign * x2, col < half)
            tl.store(y + at + half, sign * x1, col < half)


def _turn(x, back):
    x = x.contiguous()
    y = torch.empty_like(x)
    if x.numel():
        half = x.shape[-1] // 2
        rows = x.numel() // (2 * half)
        _kernel[(min(rows, 5),)](x, y, rows, half, back, 32)
    return y


class _RotateHalf(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return _turn(x, False)

    @staticmethod
    def backward(ctx, grad):
        return _turn(grad, True)


def rotate_half(x):
    return _RotateHalf.apply(x)
