"""A product of tiles that are smaller than a tensor core's.

Expected: forward=COMPILE_ERROR backward=COMPILE_ERROR
"""

import torch
import triton
import triton.language as tl


@triton.jit
def _kernel(x, y, d, sign, BLOCK: tl.constexpr):
    """Turn by a matrix: y[j] = sum over i of x[i] R[i, j], R[i, j] = sign where i = j + d / 2."""
    row, offs = tl.program_id(0) * d, tl.arange(0, BLOCK)
    i, j = offs[:, None], offs[None, :]
    half = d // 2
    turn = tl.where(i == j + half, sign, 0) - tl.where(i + half == j, sign, 0)
    value = tl.load(x + row + offs, offs < d, 0.0)[None, :]
    out = tl.dot(value.to(tl.float32), turn.to(tl.float32), input_precision="ieee")
    tl.store(y + row + j, out.to(y.dtype.element_ty), j < d)


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
