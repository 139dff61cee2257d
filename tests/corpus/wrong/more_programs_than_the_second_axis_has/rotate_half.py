"""Programs of the second axis from 65,536 on, of which a GPU starts none.

Expected: forward=RUNTIME_ERROR backward=RUNTIME_ERROR
"""

import torch
import triton
import triton.language as tl


@triton.jit
def _kernel(x, y, rows, d, sign, BLOCK: tl.constexpr):
    row, offs = tl.program_id(1), tl.arange(0, BLOCK)
    if row < rows:
        value = tl.load(x + row * d + (offs + d // 2) % d, offs < d)
        value = tl.where(offs < d // 2, sign * value, -sign * value)
        tl.store(y + row * d + offs, value, offs < d)


def _launch(x, sign):
    x = x.contiguous()
    y = torch.empty_like(x)
    d = x.shape[-1]
    if rows := x.numel() // max(d, 1):
        _kernel[(1, max(rows, 65_536))](x, y, rows, d, sign, triton.next_power_of_2(d))
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
