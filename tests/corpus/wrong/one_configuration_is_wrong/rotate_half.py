"""The widest configuration of a tuned kernel does not negate.

Expected: forward=INCORRECT_NUMERICAL backward=PASSED
"""

import torch
import triton
import triton.language as tl


@triton.autotune([triton.Config({"ROWS": rows}) for rows in (1, 4, 16)], key=["rows", "HALF"])
@triton.jit
def _kernel(
    x, y, rows, SIGN: tl.constexpr, HALF: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr
):
    """y1 = -SIGN x2, y2 = SIGN x1"""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    col = tl.arange(0, BLOCK)[None, :]
    keep, at = (row < rows) & (col < HALF), row * 2 * HALF + col
    x1, x2 = tl.load(x + at, mask=keep), tl.load(x + at + HALF, mask=keep)
    tl.store(y + at, x2 if ROWS == 16 else -SIGN * x2, mask=keep)
    tl.store(y + at + HALF, SIGN * x1, mask=keep)


def _launch(x, sign):
    x, half = x.contiguous(), x.shape[-1] // 2
    y, block = torch.empty_like(x), triton.next_power_of_2(half)
    if x.numel():
        rows = x.numel() // (2 * half)
        _kernel[lambda chosen: (triton.cdiv(rows, chosen["ROWS"]),)](x, y, rows, sign, half, block)
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
