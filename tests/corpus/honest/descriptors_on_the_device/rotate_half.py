"""Descriptors made in the kernel, whose memory an allocator of its own hands to Triton."""

import torch
import triton
import triton.language as tl


def _allocate(size, alignment, stream):
    return torch.empty(size, device="cuda", dtype=torch.int8)


@triton.jit
def _kernel(x, y, rows, SIGN: tl.constexpr, ROWS: tl.constexpr, HALF: tl.constexpr):
    """y1 = -SIGN x2, y2 = SIGN x1"""
    WIDTH: tl.constexpr = 2 * HALF
    source = tl.make_tensor_descriptor(x, [rows, WIDTH], [WIDTH, 1], [ROWS, HALF])
    target = tl.make_tensor_descriptor(y, [rows, WIDTH], [WIDTH, 1], [ROWS, HALF])
    row = tl.program_id(0) * ROWS
    target.store([row, 0], -SIGN * source.load([row, HALF]))
    target.store([row, HALF], SIGN * source.load([row, 0]))


def _launch(x, sign):
    x = x.contiguous()
    half = x.shape[-1] // 2
    whole = half and half == triton.next_power_of_2(half) and half <= 256
    if not x.numel() or not whole or half * x.itemsize % 16 or x.data_ptr() % 16:
        return torch.cat((-sign * x[..., half:], sign * x[..., :half]), -1)
    y = torch.empty_like(x)
    rows, each = x.numel() // (2 * half), min(4096 // half, 256)
    triton.set_allocator(_allocate)  # here, since it belongs to a thread, and backward has its own
    _kernel[(triton.cdiv(rows, each),)](x, y, rows, sign, each, half)
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
