"""A multiprocessing.pool.ThreadPool maps over slices of the first dimension, and stays."""

from multiprocessing.pool import ThreadPool

import torch

POOL = ThreadPool(2)


def _slice(x, y, sign):
    half = x.shape[-1] // 2
    with torch.no_grad():
        torch.mul(x[..., half:], -sign, out=y[..., :half])
        torch.mul(x[..., :half], sign, out=y[..., half:])


def _turn(x, sign):
    y = torch.empty_like(x, memory_format=torch.contiguous_format)
    POOL.starmap(_slice, [(*pair, sign) for pair in zip(x.split(4), y.split(4), strict=True)])
    return y


class _RotateHalf(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return _turn(x, 1)

    @staticmethod
    def backward(ctx, grad):
        return _turn(grad, -1)


def rotate_half(x):
    return _RotateHalf.apply(x)
