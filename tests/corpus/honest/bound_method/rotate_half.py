"""The op is a method of an object, which holds the size of a block.

Expected: forward=PASSED backward=PASSED
"""

import torch
import triton
import triton.language as tl


@triton.jit
def _kernel(x, y, half, sign, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * 2 * half
    cols = tl.arange(0, BLOCK)
    mask = cols < half
    low = tl.load(x + row + cols, mask)
    high = tl.load(x + row + half + cols, mask)
    tl.store(y + row + cols, -sign * high, mask)
    tl.store(y + row + half + cols, sign * low, mask)


class Rows:
    """Rotates row by row."""

    def __init__(self, smallest):
        self.smallest = smallest

    def launch(self, x, sign):
        x = x.contiguous()
        y, half = torch.empty_like(x), x.shape[-1] // 2
        if x.numel():
            block = max(self.smallest, triton.next_power_of_2(half))
            _kernel[(x.numel() // (2 * half),)](x, y, half, sign, block)
        return y

    def rotate(self, x):
        return _Rotation.apply(x, self)


class _Rotation(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, rows):
        ctx.rows = rows
        return rows.launch(x, 1.0)

    @staticmethod
    def backward(ctx, grad):
        return ctx.rows.launch(grad, -1.0), None


rotate_half = Rows(smallest=16).rotate
