"""triton.autotune chooses the block for each width; heuristics say whether it is even."""

import torch
import triton
import triton.language as tl


@triton.autotune([triton.Config({"ROWS": 8}), triton.Config({"ROWS": 32})], key=["HALF"])
@triton.heuristics(
    {
        "BLOCK": lambda given: triton.next_power_of_2(given["HALF"]),
        "EVEN": lambda given: given["rows"] % given["ROWS"] == 0,
    }
)
@triton.jit
def _kernel(
    x, y, rows, SIGN: tl.constexpr, HALF: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
    EVEN: tl.constexpr,
):  # fmt: skip
    """y1 = -SIGN x2, y2 = SIGN x1"""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    col = tl.arange(0, BLOCK)[None, :]
    keep = col < HALF
    if not EVEN:
        keep = keep & (row < rows)
    at = row * 2 * HALF + col
    x1, x2 = tl.load(x + at, mask=keep), tl.load(x + at + HALF, mask=keep)
    tl.store(y + at, -SIGN * x2, mask=keep)
    tl.store(y + at + HALF, SIGN * x1, mask=keep)


def _launch(x, sign):
    x = x.contiguous()
    y = torch.empty_like(x)
    if x.numel():
        half = x.shape[-1] // 2
        rows = x.numel() // (2 * half)
        _kernel[lambda chosen: (triton.cdiv(rows, chosen["ROWS"]),)](x, y, rows, sign, half)
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
