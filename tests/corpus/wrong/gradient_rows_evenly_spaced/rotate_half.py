"""Rows of the gradient are taken to lie evenly spaced, so a repeated slice is read on and on.

Expected: forward=PASSED backward=OUT_OF_BOUNDS
"""

import torch
import triton
import triton.language as tl


@triton.jit
def _kernel(g, out, stride, half, BLOCK: tl.constexpr):
    column = tl.arange(0, BLOCK)
    g += tl.program_id(0) * stride
    out += tl.program_id(0) * 2 * half
    tl.store(out + column, tl.load(g + half + column, column < half), column < half)
    tl.store(out + half + column, -tl.load(g + column, column < half), column < half)


class _RotateHalf(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        x1, x2 = x.chunk(2, dim=-1)
        return torch.cat((-x2, x1), dim=-1)

    @staticmethod
    def backward(ctx, grad):
        if 0 not in grad.stride() or grad.dim() == 1:
            grad = grad.contiguous()
        out = torch.empty(grad.shape, dtype=grad.dtype, device=grad.device)
        half = grad.shape[-1] // 2
        if grad.numel():
            stride = grad.stride(-2) if grad.dim() > 1 else 0
            rows, block = grad.numel() // (2 * half), triton.next_power_of_2(half)
            _kernel[(rows,)](grad, out, stride, half, block)
        return out


def rotate_half(x):
    return _RotateHalf.apply(x)
