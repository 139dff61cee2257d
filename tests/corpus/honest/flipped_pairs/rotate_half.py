"""A block of pairs is flipped along them, in either layout, and one of each two is negated."""

import torch
import triton
import triton.language as tl


@triton.jit
def _kernel(x, y, rows, half, SIGN: tl.constexpr, INTERLEAVED: tl.constexpr,
            ROWS: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None, None]
    pair = tl.arange(0, BLOCK)[None, :, None]
    part = tl.arange(0, 2)[None, None, :]
    keep = (row < rows) & (pair < half) & (part < 2)
    at = row * 2 * half + (2 * pair + part if INTERLEAVED else pair + part * half)
    partner = tl.flip(tl.load(x + at, mask=keep), 2)
    tl.store(y + at, tl.where(part == 0, -SIGN, SIGN) * partner, mask=keep)


def _launch(x, interleaved, sign):
    x = x.contiguous()
    y = torch.empty_like(x)
    if x.numel():
        half = x.shape[-1] // 2
        rows, block = x.numel() // (2 * half), triton.next_power_of_2(half)
        each = max(1024 // block, 1)
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
    return _RotateHalf.apply(x, interleaved)
