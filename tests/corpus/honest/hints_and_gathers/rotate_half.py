"""Hints, an assumption, a gather along the features, a barrier and a cache modifier."""

import torch
import triton
import triton.language as tl


@triton.jit
def _kernel(x, y, rows, SIGN: tl.constexpr, HALF: tl.constexpr, ROWS: tl.constexpr,
            BLOCK: tl.constexpr):  # fmt: skip
    """y1 = -SIGN x2, y2 = SIGN x1; a block holds ROWS whole rows"""
    tl.static_assert(BLOCK >= 2 * HALF)
    tl.assume(rows > 0)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None].to(tl.int64)
    col = tl.max_contiguous(tl.multiple_of(tl.arange(0, BLOCK), BLOCK), BLOCK)[None, :]
    keep = (row < rows) & (col < 2 * HALF)
    at = row * 2 * HALF + col
    block = tl.load(x + at, keep, 0.0, cache_modifier=".cg")
    partner = tl.where(col < HALF, col + HALF, tl.where(col < 2 * HALF, col - HALF, col))
    turned = tl.gather(block, tl.broadcast_to(partner, (ROWS, BLOCK)), 1)
    tl.debug_barrier()
    turned = tl.where(col < HALF, -SIGN * turned, SIGN * turned)
    tl.store(y + at, tl.flip(tl.flip(turned, 1), 1), keep, eviction_policy="evict_first")


def _turn(x, sign):
    x = x.contiguous()
    y = torch.empty_like(x)
    if x.numel():
        half = x.shape[-1] // 2
        rows, block = x.numel() // (2 * half), triton.next_power_of_2(2 * half)
        each = max(1024 // block, 1)
        _kernel[(triton.cdiv(rows, each),)](x, y, rows, sign, half, each, block)
    return y


class _RotateHalf(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return _turn(x, 1)

    @staticmethod
    def backward(ctx, grad):
        return _turn(grad, -1)


def rotate_half(x):
    return _RotateHalf.apply(x)
