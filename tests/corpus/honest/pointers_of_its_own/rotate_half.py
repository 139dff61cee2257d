"""An object with an address and a dtype, which is no tensor, is what a kernel is launched on."""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl


@dataclass(frozen=True)
class Pointer:
    tensor: torch.Tensor
    start: int = 0

    @property
    def dtype(self):
        return self.tensor.dtype

    def data_ptr(self):
        return self.tensor.data_ptr() + self.start * self.tensor.itemsize


@triton.jit
def _kernel(x1, x2, y1, y2, SIGN: tl.constexpr, HALF: tl.constexpr, BLOCK: tl.constexpr):
    col = tl.arange(0, BLOCK)
    at = tl.program_id(0).to(tl.int64) * 2 * HALF + col
    tl.store(y1 + at, -SIGN * tl.load(x2 + at, mask=col < HALF), mask=col < HALF)
    tl.store(y2 + at, SIGN * tl.load(x1 + at, mask=col < HALF), mask=col < HALF)


def _turn(x, sign):
    x = x.contiguous()
    y = torch.empty_like(x)
    if x.numel():
        half = x.shape[-1] // 2
        halves = [Pointer(tensor, start) for tensor in (x, y) for start in (0, half)]
        block = triton.next_power_of_2(half)
        _kernel[(x.numel() // (2 * half),)](*halves, sign, half, block)
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
