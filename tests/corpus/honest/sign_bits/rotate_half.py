"""Elements move as integers: a view of the same bits, whose highest one is flipped for the sign."""

import torch
import triton
import triton.language as tl

BITS = {2: torch.int16, 4: torch.int32}


@triton.jit
def _kernel(x, y, rows, HIGHEST: tl.constexpr, FORWARD: tl.constexpr, HALF: tl.constexpr,
            ROWS: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    """y1 = -x2, y2 = x1 forward and y1 = x2, y2 = -x1 backward, on the bits"""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    col = tl.arange(0, BLOCK)[None, :]
    keep = (row < rows) & (col < HALF)
    at = row * 2 * HALF + col
    x1, x2 = tl.load(x + at, mask=keep), tl.load(x + at + HALF, mask=keep)
    sign = tl.full([1, 1], HIGHEST, x1.dtype)
    tl.store(y + at, x2 ^ sign if FORWARD else x2, mask=keep)
    tl.store(y + at + HALF, x1 if FORWARD else x1 ^ sign, mask=keep)


def _launch(x, forward):
    x = x.contiguous()
    y = torch.empty_like(x)
    if x.numel():
        bits, half = BITS[x.itemsize], x.shape[-1] // 2
        block = triton.next_power_of_2(half)
        rows, each = x.numel() // (2 * half), max(2048 // block, 1)
        highest = torch.iinfo(bits).min
        _kernel[(triton.cdiv(rows, each),)](
            x.view(bits), y.view(bits), rows, highest, forward, half, each, block
        )
    return y


class _RotateHalf(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return _launch(x, True)

    @staticmethod
    def backward(ctx, grad):
        return _launch(grad, False)


def rotate_half(x):
    return _RotateHalf.apply(x)
