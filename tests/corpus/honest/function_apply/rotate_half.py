"""The op is an autograd function's `apply` itself, which takes no keywords.

Expected: forward=PASSED backward=PASSED
"""

import torch


def _turned(x, sign):
    a, b = x.chunk(2, -1)
    return torch.cat((-sign * b, sign * a), -1)


class _RotateHalf(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return _turned(x, 1)

    @staticmethod
    def backward(ctx, grad):
        return _turned(grad, -1)


rotate_half = _RotateHalf.apply
