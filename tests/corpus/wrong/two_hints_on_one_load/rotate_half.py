"""A load with a cache modifier and an eviction policy, which PTX cannot state together.

Expected: forward=COMPILE_ERROR backward=COMPILE_ERROR
"""

import torch
import triton
import triton.language as tl


@triton.jit
def _kernel(x, y, d, sign, BLOCK: tl.constexpr):
    """Turn one row: y1 = -sign x2, y2 = sign x1; x streams past the caches."""
    row, offs, half = tl.program_id(0) * d, tl.arange(0, BLOCK), d // 2
    partner = tl.where(offs < half, offs + half, offs - half)
    value = tl.load(
        x + row + partner, offs < d, cache_modifier=".cg", eviction_policy="evict_first"
    )
    tl.store(y + row + offs, tl.where(offs < half, -sign * value, sign * value), offs < d)


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
        return _launch(x, 1)

    @staticmethod
    def backward(ctx, grad):
        return _launch(grad, -1)


def rotate_half(x):
    return _RotateHalf.apply(x)
