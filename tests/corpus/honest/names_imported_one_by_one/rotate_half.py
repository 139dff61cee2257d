"""The language's functions are imported by their names, or named whole; no `tl` is there."""

import torch
import triton.language
from triton import jit, next_power_of_2
from triton.language import arange, constexpr, load, program_id, store


@jit
def _kernel(x, y, SIGN: triton.language.constexpr, HALF: constexpr, BLOCK: constexpr):
    col = arange(0, BLOCK)
    at = program_id(0).to(triton.language.int64) * 2 * HALF + col
    x1, x2 = load(x + at, mask=col < HALF), load(x + at + HALF, mask=col < HALF)
    store(y + at, -SIGN * x2, mask=col < HALF)
    triton.language.store(y + at + HALF, SIGN * x1, mask=col < HALF)


def _turn(x, sign):
    x = x.contiguous()
    y = torch.empty_like(x)
    if x.numel():
        half = x.shape[-1] // 2
        _kernel[(x.numel() // (2 * half),)](x, y, sign, half, next_power_of_2(half))
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
