"""Blocks of 4 KiB of whole rows; one line of code turns both members of a pair."""

import math

import torch
import triton
import triton.language as tl


@triton.jit
def _rotate_half_kernel(
    x,  # [rows, WIDTH], contiguous
    y,  # as x
    rows,  # all of them, whatever the dimensions of x are
    WIDTH: tl.constexpr,  # features of a row, an even number
    INTERLEAVED: tl.constexpr,  # features 2i and 2i + 1 are a pair, otherwise i and i + WIDTH / 2
    BACKWARD: tl.constexpr,  # x is the gradient of forward's result, y that of its x
    BLOCK_R: tl.constexpr,  # rows of a program
):
    """Turn each pair of features (x1, x2) by a quarter: (-x2, x1), backward (x2, -x1).

    Bytes: 2 * x.numel() * itemsize, since x is read once and y is written once.
    """
    BLOCK: tl.constexpr = triton.next_power_of_2(WIDTH)
    DISTANCE: tl.constexpr = 1 if INTERLEAVED else WIDTH // 2  # from a feature to its partner
    row = tl.program_id(0).to(tl.int64) * BLOCK_R + tl.arange(0, BLOCK_R)[:, None]
    feature = tl.arange(0, BLOCK)[None, :]
    inside = (row < rows) & (feature < WIDTH)
    first = feature // DISTANCE % 2 == 0
    if INTERLEAVED:  # exchanged in registers; a load of partners would take single elements
        pairs = tl.load(x + row * WIDTH + feature, mask=inside)
        x1, x2 = tl.split(tl.reshape(pairs, [BLOCK_R, BLOCK // 2, 2]))
        z = tl.reshape(tl.join(x2, x1), [BLOCK_R, BLOCK])
    else:
        partner = tl.where(first, feature + DISTANCE, feature - DISTANCE)
        z = tl.load(x + row * WIDTH + partner, mask=inside)
    tl.store(y + row * WIDTH + feature, tl.where(first != BACKWARD, -z, z), mask=inside)


class _RotateHalf(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, interleaved, backward):
        ctx.options = interleaved, backward
        x = x.contiguous()
        y = torch.empty_like(x)
        *rows, width = x.shape
        rows = math.prod(rows)
        # 4 KiB or one row: 32 bytes for each of 128 threads, two accesses of the widest kind
        block_r = max(4096 // (triton.next_power_of_2(max(width, 1)) * x.element_size()), 1)
        if x.numel():
            grid = (triton.cdiv(rows, block_r),)
            _rotate_half_kernel[grid](x, y, rows, width, interleaved, backward, block_r)
        return y

    @staticmethod
    def backward(ctx, grad):
        interleaved, backward = ctx.options
        return _RotateHalf.apply(grad, interleaved, not backward), None, None


def rotate_half(x, *, interleaved=False):
    """Return [-x2, x1] for the halves [x1, x2] of x [..., d], d even; interleaved, for the pairs.

    With `interleaved`, (x[2i], x[2i + 1]) becomes (-x[2i + 1], x[2i]). Returns x's shape and dtype;
    an odd d is a ValueError.
    """
    if not x.dim() or x.shape[-1] % 2:
        raise ValueError(f"rotate_half: x {list(x.shape)} is not [..., d], d even")
    return _RotateHalf.apply(x, interleaved, False)
