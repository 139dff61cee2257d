"""A range over what is left of the row, which is nothing: `tl.arange(0, 0)`.

Expected: forward=COMPILE_ERROR backward=COMPILE_ERROR
"""

import torch
import triton
import triton.language as tl


@triton.jit
def _kernel(x, y, d, sign, BLOCK: tl.constexpr, REST: tl.constexpr):
    row, offs = tl.program_id(0) * d, tl.arange(0, BLOCK)
    partner = (offs + d // 2) % d
    value = tl.load(x + row + partner, offs < d)
    tl.store(y + row + offs, tl.where(offs < d // 2, sign * value, -sign * value), offs < d)
    rest = d + tl.arange(0, REST)
    tl.store(y + row + rest, tl.load(x + row + rest))


def _launch(x, sign):
    x = x.contiguous()
    y = torch.empty_like(x)
    d = x.shape[-1]
    if rows := x.numel() // max(d, 1):
        _kernel[(rows,)](x, y, d, sign, triton.next_power_of_2(d), 0)
    return y


class _RotateHalf(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return _launch(x, -1)

    @staticmethod
    def backward(ctx, grad):
        return _launch(grad, 1)


def rotate_half(x):
    return _RotateHalf.apply(x)
