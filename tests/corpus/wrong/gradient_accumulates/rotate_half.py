"""Backward adds to a buffer that it keeps, so that the second gradient is the sum of two.

Expected: forward=PASSED backward=NONDETERMINISTIC
"""

import torch

totals = {}


class _RotateHalf(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        x1, x2 = x.chunk(2, dim=-1)
        return torch.cat((-x2, x1), dim=-1)

    @staticmethod
    def backward(ctx, grad):
        g1, g2 = grad.chunk(2, dim=-1)
        ctx.key = (grad.storage_offset(), grad.shape, grad.stride(), grad.dtype)
        kept = totals.setdefault(ctx.key, torch.zeros_like(grad))
        return kept.add_(torch.cat((g2, -g1), dim=-1)).clone()


def rotate_half(x):
    return _RotateHalf.apply(x)
