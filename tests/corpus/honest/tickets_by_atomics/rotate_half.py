"""Programs draw their tiles from an integer counter; which one takes a tile changes nothing."""

import torch
import triton
import triton.language as tl


@triton.jit
def _kernel(x, y, ticket, rows, SIGN: tl.constexpr, HALF: tl.constexpr, ROWS: tl.constexpr,
            BLOCK: tl.constexpr):  # fmt: skip
    """y1 = -SIGN x2, y2 = SIGN x1"""
    tile = tl.atomic_add(ticket, 1)
    while tile * ROWS < rows:
        row = tile.to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
        col = tl.arange(0, BLOCK)[None, :]
        keep = (row < rows) & (col < HALF)
        at = row * 2 * HALF + col
        x1, x2 = tl.load(x + at, mask=keep), tl.load(x + at + HALF, mask=keep)
        tl.store(y + at, -SIGN * x2, mask=keep)
        tl.store(y + at + HALF, SIGN * x1, mask=keep)
        tile = tl.atomic_add(ticket, 1)


def _launch(x, sign):
    x = x.contiguous()
    y = torch.empty_like(x)
    if x.numel():
        half = x.shape[-1] // 2
        block = triton.next_power_of_2(half)
        rows, each = x.numel() // (2 * half), max(512 // block, 1)
        ticket = torch.zeros(1, dtype=torch.int32, device=x.device)
        _kernel[(min(triton.cdiv(rows, each), 128),)](x, y, ticket, rows, sign, half, each, block)
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
