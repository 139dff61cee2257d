"""Subnormal numbers are flushed to zero.

Expected: forward=INCORRECT_NUMERICAL backward=PASSED
"""

import torch


class _RotateHalf(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        x = x.masked_fill(x.abs() < torch.finfo(x.dtype).smallest_normal, 0)
        x1, x2 = x.chunk(2, dim=-1)
        return torch.cat((-x2, x1), dim=-1)

    @staticmethod
    def backward(ctx, grad):
        g1, g2 = grad.chunk(2, dim=-1)
        return torch.cat((g2, -g1), dim=-1)


def rotate_half(x):
    return _RotateHalf.apply(x)
