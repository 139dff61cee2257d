"""The offset of a load is shifted by 40 bits, which leads far away from every tensor.

Expected: forward=OUT_OF_BOUNDS backward=OUT_OF_BOUNDS
On a GPU: RUNTIME_ERROR
"""

import torch
import triton
import triton.language as tl


@triton.jit
def _kernel(x, y, n, d, BACKWARD: tl.constexpr, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    first = offs % d < d // 2
    partner = tl.where(first, offs + d // 2, offs - d // 2).to(tl.int64) << 40
    value = tl.load(x + partner, mask)
    tl.store(y + offs, tl.where(first != BACKWARD, -value, value), mask)


def _launch(x, backward):
    x = x.contiguous()
    y = torch.empty_like(x)
    n = x.numel()
    if n:
        _kernel[(triton.cdiv(n, 256),)](x, y, n, x.shape[-1], backward, 256)
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
