"""The halves travel through DLPack, and the result comes back as a tensor of another owner."""

import torch
from torch.utils.dlpack import from_dlpack, to_dlpack


def _turn(x, sign):
    x1, x2 = (from_dlpack(to_dlpack(half)) for half in x.detach().chunk(2, -1))
    return from_dlpack(to_dlpack(torch.cat((-sign * x2, sign * x1), -1)))


class _RotateHalf(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return _turn(x, 1)

    @staticmethod
    def backward(ctx, grad):
        return _turn(grad, -1)


def rotate_half(x):
    return _RotateHalf.apply(x)
