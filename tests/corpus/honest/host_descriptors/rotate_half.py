"""Tensor descriptors made on the host where rows are aligned to 16 bytes; torch where not."""

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor


@triton.jit
def _kernel(x, y, SIGN: tl.constexpr, ROWS: tl.constexpr, HALF: tl.constexpr):
    """y1 = -SIGN x2, y2 = SIGN x1"""
    row = tl.program_id(0) * ROWS
    y.store([row, 0], -SIGN * x.load([row, HALF]))
    y.store([row, HALF], SIGN * x.load([row, 0]))


def _launch(x, sign):
    x = x.contiguous()
    half = x.shape[-1] // 2
    whole = half and half == triton.next_power_of_2(half) and half <= 256
    if not x.numel() or not whole or half * x.itemsize % 16 or x.data_ptr() % 16:
        return torch.cat((-sign * x[..., half:], sign * x[..., :half]), -1)
    y = torch.empty_like(x)
    x, flat, each = x.view(-1, 2 * half), y.view(-1, 2 * half), min(4096 // half, 256)
    tables = [TensorDescriptor.from_tensor(each_one, [each, half]) for each_one in (x, flat)]
    _kernel[(triton.cdiv(len(x), each),)](*tables, sign, each, half)
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
