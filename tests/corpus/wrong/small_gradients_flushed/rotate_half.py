"""Backward sets gradients below a millionth to zero.

Expected: forward=PASSED backward=INCORRECT_NUMERICAL
"""

import torch


class _RotateHalf(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        first, second = x.chunk(2, -1)
        return torch.cat((-second, first), -1)

    @staticmethod
    def backward(ctx, grad):
        first, second = torch.where(grad.abs() < 1e-6, 0, grad).chunk(2, -1)
        return torch.cat((second, -first), -1)


def rotate_half(x):
    return _RotateHalf.apply(x)
