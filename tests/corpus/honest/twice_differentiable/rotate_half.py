"""Backward is the forward Function with the other sign, so that it has a gradient of its own."""

import torch
import triton
import triton.language as tl


@triton.jit
def _kernel(x, y, rows, sign, HALF: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """y1 = -sign x2, y2 = sign x1"""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    col = tl.arange(0, BLOCK)[None, :]
    keep = (row < rows) & (col < HALF)
    at = row * 2 * HALF + col
    x1, x2 = tl.load(x + at, mask=keep), tl.load(x + at + HALF, mask=keep)
    tl.store(y + at, (-sign * x2).to(x1.dtype), mask=keep)
    tl.store(y + at + HALF, (sign * x1).to(x1.dtype), mask=keep)


class _Turn(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, sign):
        ctx.sign = sign
        x = x.contiguous()
        y = torch.empty_like(x)
        if x.numel():
            half = x.shape[-1] // 2
            rows = x.numel() // (2 * half)
            block = triton.next_power_of_2(half)
            each = max(2048 // block, 1)
            _kernel[(triton.cdiv(rows, each),)](x, y, rows, float(sign), half, each, block)
        return y

    @staticmethod
    def backward(ctx, grad):
        return _Turn.apply(grad, -ctx.sign), None


def rotate_half(x):
    return _Turn.apply(x, 1)
