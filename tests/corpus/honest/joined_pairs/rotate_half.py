"""A block of pairs is split, negated, joined and reshaped, in either layout of pairs."""

import torch
import triton
import triton.language as tl


@triton.jit
def _kernel(x, y, rows, HALF: tl.constexpr, SIGN: tl.constexpr, INTERLEAVED: tl.constexpr,
            ROWS: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    """(a, b) -> (-SIGN b, SIGN a); a block is [ROWS, pairs, 2]"""
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)[:, None, None]
    pair, side = tl.arange(0, BLOCK)[None, :, None], tl.arange(0, 2)[None, None, :]
    at = row * 2 * HALF + (2 * pair + side if INTERLEAVED else pair + side * HALF)
    at, keep = tl.broadcast(at, row + pair + side)[0], (row < rows) & (pair < HALF) & (side < 2)
    a, b = tl.split(tl.load(x + at, mask=keep))
    flat = tl.reshape(tl.join(-SIGN * b, SIGN * a), (ROWS * BLOCK, 2))
    tl.store(y + at, tl.reshape(flat, (ROWS, BLOCK, 2)), mask=keep)


def _launch(x, interleaved, sign):
    x = x.contiguous()
    y = torch.empty_like(x)
    if x.numel():
        half = x.shape[-1] // 2
        block = triton.next_power_of_2(half)
        rows, each = x.numel() // (2 * half), max(1024 // block, 1)
        _kernel[(triton.cdiv(rows, each),)](x, y, rows, half, sign, interleaved, each, block)
    return y


class _RotateHalf(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, interleaved):
        ctx.interleaved = interleaved
        return _launch(x, interleaved, 1)

    @staticmethod
    def backward(ctx, grad):
        return _launch(grad, ctx.interleaved, -1), None


def rotate_half(x, *, interleaved=False):
    return _RotateHalf.apply(x, bool(interleaved))
