"""Gradients of a shape lie in two buffers by turns: the next but one overwrites each.

Expected: forward=PASSED backward=INCORRECT_NUMERICAL
"""

import itertools

import torch

buffers = {}
turns = itertools.count()


def _turned(x, interleaved, sign):
    if interleaved:
        return torch.stack((-sign * x[..., 1::2], sign * x[..., ::2]), -1).flatten(-2)
    a, b = x.chunk(2, -1)
    return torch.cat((-sign * b, sign * a), -1)


class _RotateHalf(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, interleaved):
        ctx.interleaved = interleaved
        return _turned(x, interleaved, 1)

    @staticmethod
    def backward(ctx, grad):
        key = (next(turns) % 2, grad.shape, grad.dtype, grad.device)
        if key not in buffers:
            buffers[key] = torch.empty(grad.shape, dtype=grad.dtype, device=grad.device)
        return buffers[key].copy_(_turned(grad, ctx.interleaved, -1))[:], None


def rotate_half(x, *, interleaved=False):
    return _RotateHalf.apply(x, interleaved)
