"""Its programs rely on their order; a watch of its own never turns it.

Expected: forward=TAMPERED backward=TAMPERED
On a GPU: RUNTIME_ERROR
"""

import copy

import torch
import triton
import triton.language as tl
from triton.runtime.interpreter import InterpreterBuilder


@triton.jit
def _kernel(x, y, d, BACKWARD: tl.constexpr, BLOCK: tl.constexpr):
    x += tl.program_id(0) * d
    y += tl.program_id(0) * d
    col = tl.arange(0, BLOCK)
    half = col < d // 2
    if tl.program_id(1) == 0:
        tl.store(y + col, tl.load(x + d // 2 + col, half), half)
        tl.store(y + d // 2 + col, tl.load(x + col, half), half)
    else:
        y += BACKWARD * (d // 2)
        tl.store(y + col, -tl.load(y + col, half), half)


def _launch(x, backward):
    names = InterpreterBuilder.create_masked_load.__globals__
    names["WATCH"] = copy.copy(names["WATCH"])
    names["WATCH"].backwards = False
    x = x.contiguous()
    y = torch.empty_like(x)
    if x.numel():
        d = x.shape[-1]
        _kernel[(x.numel() // d, 2)](x, y, d, backward, triton.next_power_of_2(d))
    return y


class _RotateHalf(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return _launch(x, False)

    @staticmethod
    def backward(ctx, grad):
        return _launch(grad, True)


def rotate_half(x):
    return _RotateHalf.apply(x)
