"""The last block of rows ends at the remainder, which is 0 where all blocks are whole.

Expected: forward=UNWRITTEN_OUTPUT backward=UNWRITTEN_OUTPUT
"""

import torch
import triton
import triton.language as tl

ROWS = 64


@triton.jit
def _kernel(x, out, rows, half, sign, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.arange(0, ROWS)[:, None]
    is_last = tl.program_id(0) == tl.num_programs(0) - 1
    count = tl.where(is_last, rows % ROWS, ROWS)
    column = tl.arange(0, BLOCK)[None, :]
    at = (tl.program_id(0) * ROWS + row) * 2 * half + column
    keep = (row < count) & (column < half)
    first, second = tl.load(x + at, mask=keep), tl.load(x + at + half, mask=keep)
    tl.store(out + at, -sign * second, mask=keep)
    tl.store(out + at + half, sign * first, mask=keep)


def _launch(x, sign):
    x = x.contiguous()
    out = torch.empty_like(x)
    if x.numel():
        half = x.shape[-1] // 2
        rows = x.numel() // (2 * half)
        block = triton.next_power_of_2(half)
        _kernel[(triton.cdiv(rows, ROWS),)](x, out, rows, half, sign, ROWS, block)
    return out


class _RotateHalf(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return _launch(x, 1)

    @staticmethod
    def backward(ctx, grad):
        return _launch(grad, -1)


def rotate_half(x):
    return _RotateHalf.apply(x)
