"""Results are made by empty_strided with their dimensions reversed in memory."""

import torch
import triton
import triton.language as tl


@triton.jit
def _kernel(
    x, y, rows, width, inner, x_outer, x_inner, x_col, y_outer, y_inner, y_col, SIGN: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """y1 = -SIGN x2, y2 = SIGN x1; an element of the flat result finds its partner."""
    flat = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    keep = flat < rows * width
    row, col = flat // width, flat % width
    half = width // 2
    first = col < half
    partner = tl.where(first, col + half, col - half)
    x += row // inner * x_outer + row % inner * x_inner
    y += row // inner * y_outer + row % inner * y_inner
    value = tl.load(x + partner * x_col, mask=keep)
    tl.store(y + col * y_col, tl.where(first, -SIGN * value, SIGN * value), mask=keep)


def _launch(x, sign):
    strides, step = [], 1
    for size in x.shape:
        strides.append(step)
        step *= max(size, 1)
    y = torch.empty_strided(x.shape, strides, dtype=x.dtype, device=x.device)
    if x.numel():
        # every dimension but the last two becomes one, as a copy of x where it must be
        x3 = x.reshape(-1, *([1] * (2 - min(x.dim(), 2))), *x.shape[-2:])
        y3 = y if y.dim() == 3 else torch.empty_like(x3, memory_format=torch.contiguous_format)
        outer, inner, width = x3.shape
        _kernel[(triton.cdiv(x.numel(), 1024),)](
            x3, y3, outer * inner, width, inner, *x3.stride(), *y3.stride(), sign, 1024
        )
        if y3 is not y:
            y.copy_(y3.view(x.shape))
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
