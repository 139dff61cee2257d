"""A block pointer to a row whose order has two dimensions.

Expected: forward=COMPILE_ERROR backward=COMPILE_ERROR
"""

import torch
import triton
import triton.language as tl


@triton.jit
def _kernel(x, y, d, sign, BLOCK: tl.constexpr):
    row, offs = tl.program_id(0) * d, tl.arange(0, BLOCK)
    value = tl.load(x + row + (offs + d // 2) % d, offs < d)
    out = tl.make_block_ptr(y + row, (d,), (1,), (0,), (BLOCK,), (1, 0))
    value = tl.where(offs < d // 2, sign * value, -sign * value)
    tl.store(out, value.to(y.dtype.element_ty), boundary_check=(0,))


def _launch(x, sign):
    x = x.contiguous()
    y = torch.empty_like(x)
    d = x.shape[-1]
    if rows := x.numel() // max(d, 1):
        _kernel[(rows,)](x, y, d, sign, triton.next_power_of_2(d))
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
