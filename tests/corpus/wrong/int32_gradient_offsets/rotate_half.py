"""Backward's offset of a row is a product in int32, which wraps where rows lie far apart.

Expected: forward=PASSED backward=OUT_OF_BOUNDS
On a GPU: RUNTIME_ERROR
"""

import torch
import triton
import triton.language as tl


@triton.jit
def _copy(x, y, stride, width, BLOCK: tl.constexpr):
    column = tl.arange(0, BLOCK)
    value = tl.load(x + tl.program_id(0) * stride + column, column < width)
    tl.store(y + tl.program_id(0) * width + column, value, column < width)


def _dense(grad):
    if grad.dim() < 2 or not grad.numel() or not grad[0].is_contiguous():
        return grad.contiguous()
    y = torch.empty(grad.shape, dtype=grad.dtype, device=grad.device)
    width = grad[0].numel()
    _copy[(len(grad),)](grad, y, grad.stride(0), width, triton.next_power_of_2(width))
    return y


class _RotateHalf(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        a, b = x.chunk(2, -1)
        return torch.cat((-b, a), -1)

    @staticmethod
    def backward(ctx, grad):
        a, b = _dense(grad).chunk(2, -1)
        return torch.cat((b, -a), -1)


def rotate_half(x):
    return _RotateHalf.apply(x)
