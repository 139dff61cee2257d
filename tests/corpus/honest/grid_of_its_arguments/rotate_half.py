"""The grid is a list that a method makes of the launch's own tensors and integers."""

import torch
import triton
import triton.language as tl


@triton.jit
def _kernel(x, y, rows, SIGN: tl.constexpr, HALF: tl.constexpr, BLOCK: tl.constexpr):
    col = tl.arange(0, BLOCK)
    at = tl.program_id(0).to(tl.int64) * 2 * HALF + col
    x1, x2 = tl.load(x + at, mask=col < HALF), tl.load(x + at + HALF, mask=col < HALF)
    tl.store(y + at, -SIGN * x2, mask=col < HALF)
    tl.store(y + at + HALF, SIGN * x1, mask=col < HALF)


class Launcher:
    def __init__(self, kernel):
        self.launch = kernel[self.grid]

    @staticmethod
    def grid(given):
        assert given["x"].numel() == given["rows"] * 2 * given["HALF"]
        return [given["rows"] if isinstance(given["rows"], int) else 0]

    def __call__(self, x, sign):
        x = x.contiguous()
        y = torch.empty_like(x)
        if x.numel():
            half = x.shape[-1] // 2
            block = triton.next_power_of_2(half)
            rows = x.numel() // (2 * half)
            self.launch(x=x, y=y, rows=rows, SIGN=sign, HALF=half, BLOCK=block, num_warps=1)
        return y


_turn = Launcher(_kernel)


class _RotateHalf(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return _turn(x, 1)

    @staticmethod
    def backward(ctx, grad):
        return _turn(grad, -1)


def rotate_half(x):
    return _RotateHalf.apply(x)
