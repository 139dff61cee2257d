"""Backward reads the gradient as if it were contiguous.

Expected: forward=PASSED backward=INCORRECT_NUMERICAL
"""

import torch


class _RotateHalf(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        x1, x2 = x.chunk(2, dim=-1)
        return torch.cat((-x2, x1), dim=-1)

    @staticmethod
    def backward(ctx, grad):
        dense = grad.as_strided(grad.shape, torch.empty(grad.shape, device="meta").stride())
        g1, g2 = dense.chunk(2, dim=-1)
        return torch.cat((g2, -g1), dim=-1)


def rotate_half(x):
    return _RotateHalf.apply(x)
