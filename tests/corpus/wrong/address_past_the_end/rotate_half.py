"""Addresses are passed as integers; rows are written one element too far.

Expected: forward=OUT_OF_BOUNDS backward=OUT_OF_BOUNDS
On a GPU: OUT_OF_BOUNDS
"""

import torch
import triton
import triton.language as tl


@triton.jit
def _kernel(x, y, n, d, BACKWARD: tl.constexpr, BLOCK: tl.constexpr, TYPE: tl.constexpr):
    x = x.to(tl.pointer_type(TYPE))
    y = y.to(tl.pointer_type(TYPE))
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    first = offs % d < d // 2
    partner = tl.where(first, offs + d // 2, offs - d // 2)
    value = tl.load(x + partner, mask)
    tl.store(y + offs + 1, tl.where(first != BACKWARD, -value, value), mask)


TYPES = {torch.float32: tl.float32, torch.float16: tl.float16, torch.bfloat16: tl.bfloat16}


def _launch(x, backward):
    x = x.contiguous()
    y = torch.empty_like(x)
    n = x.numel()
    if n:
        grid = (triton.cdiv(n, 256),)
        _kernel[grid](x.data_ptr(), y.data_ptr(), n, x.shape[-1], backward, 256, TYPES[x.dtype])
    return y


class _RotateHalf(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return _launch(x, False)

    @staticmethod
    def backward(ctx, grad):
        return _launch(grad, True)


def rotate_half(x):
    return _RotateHalf.apply(x)
