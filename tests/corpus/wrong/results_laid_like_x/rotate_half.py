"""A result has x's strides, so that it cannot be written where x repeats a slice.

Expected: forward=RUNTIME_ERROR backward=RUNTIME_ERROR
"""

import torch


class _RotateHalf(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=x.device)
        a, b = x.chunk(2, -1)
        y.copy_(torch.cat((-b, a), -1))
        return y

    @staticmethod
    def backward(ctx, grad):
        a, b = grad.chunk(2, -1)
        return torch.cat((b, -a), -1)


def rotate_half(x):
    return _RotateHalf.apply(x)
