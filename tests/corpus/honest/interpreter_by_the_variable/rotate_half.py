"""Asks for Triton's interpreter before it imports Triton, as lectures advise."""

import os

os.environ["TRITON_INTERPRET"] = "1"

import torch
import triton
import triton.language as tl


@triton.jit
def _kernel(x, y, SIGN: tl.constexpr, HALF: tl.constexpr, BLOCK: tl.constexpr):
    """y1 = -SIGN x2, y2 = SIGN x1"""
    col = tl.arange(0, BLOCK)
    keep = col < HALF
    at = tl.program_id(0).to(tl.int64) * 2 * HALF + col
    x1, x2 = tl.load(x + at, mask=keep), tl.load(x + at + HALF, mask=keep)
    tl.store(y + at, -SIGN * x2, mask=keep)
    tl.store(y + at + HALF, SIGN * x1, mask=keep)


def _launch(x, sign):
    x = x.contiguous()
    y = torch.empty_like(x)
    if x.numel():
        half = x.shape[-1] // 2
        _kernel[(x.numel() // (2 * half),)](x, y, sign, half, triton.next_power_of_2(half))
    return y


class _RotateHalf(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return _launch(x, 1)

    @staticmethod
    def backward(ctx, grad):
        return _launch(grad, -1)


def rotate_half(x):
    return _RotateHalf.apply(x)
