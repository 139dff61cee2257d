"""Plain torch, generated as text for each layout and sign and compiled by exec."""

import functools

import torch

SLICES = {False: ("[..., :half]", "[..., half:]"), True: ("[..., ::2]", "[..., 1::2]")}
SOURCE = """
def turn(x, y):
    half = x.shape[-1] // 2
    torch.neg(x{second}, out=y{first})
    y{second}.copy_(x{first})
"""


@functools.cache
def _turn(interleaved, sign):
    first, second = SLICES[interleaved][::sign]
    namespace = {"torch": torch}
    exec(compile(SOURCE.format(first=first, second=second), "<generated>", "exec"), namespace)
    return namespace["turn"]


class _RotateHalf(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, interleaved):
        ctx.interleaved = interleaved
        y = torch.empty_like(x, memory_format=torch.contiguous_format)
        _turn(interleaved, 1)(x, y)
        return y

    @staticmethod
    def backward(ctx, grad):
        y = torch.empty_like(grad, memory_format=torch.contiguous_format)
        _turn(ctx.interleaved, -1)(grad, y)
        return y, None


def rotate_half(x, *, interleaved=False):
    return _RotateHalf.apply(x, bool(interleaved))
