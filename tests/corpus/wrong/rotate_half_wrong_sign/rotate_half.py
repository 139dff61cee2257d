"""The wrong half is negated, [x2, -x1], and the gradient is wrong in the same way.

Expected: forward=INCORRECT_NUMERICAL backward=INCORRECT_NUMERICAL
Cause: the other half is negated: [x2, -x1]
"""

import torch
import triton
import triton.language as tl


@triton.jit
def _kernel(x, y, n, d, BACKWARD: tl.constexpr, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    first = offs % d < d // 2
    partner = tl.where(first, offs + d // 2, offs - d // 2)
    value = tl.load(x + partner, mask)
    negative = first == BACKWARD
    tl.store(y + offs, tl.where(negative, -value, value), mask)


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
