"""A grid of fewer programs than tiles: each program walks the tiles with the grid as its stride."""

import functools

import torch
import triton
import triton.language as tl


@functools.cache
def _programs(device):
    if device.type != "cuda":
        return 3
    return 4 * torch.cuda.get_device_properties(device).multi_processor_count


@triton.jit
def _kernel(x, y, rows, SIGN: tl.constexpr, HALF: tl.constexpr, ROWS: tl.constexpr,
            BLOCK: tl.constexpr):  # fmt: skip
    """y1 = -SIGN x2, y2 = SIGN x1"""
    for tile in range(tl.program_id(0), tl.cdiv(rows, ROWS), tl.num_programs(0)):
        row = tile * ROWS + tl.arange(0, ROWS).to(tl.int64)[:, None]
        col = tl.arange(0, BLOCK)[None, :]
        keep = (row < rows) & (col < HALF)
        at = row * 2 * HALF + col
        x1, x2 = tl.load(x + at, mask=keep), tl.load(x + at + HALF, mask=keep)
        tl.store(y + at, -SIGN * x2, mask=keep)
        tl.store(y + at + HALF, SIGN * x1, mask=keep)


def _launch(x, sign):
    x = x.contiguous()
    y = torch.empty_like(x)
    if x.numel():
        half = x.shape[-1] // 2
        block = triton.next_power_of_2(half)
        rows, each = x.numel() // (2 * half), max(512 // block, 1)
        grid = min(triton.cdiv(rows, each), _programs(x.device))
        _kernel[(grid,)](x, y, rows, sign, half, each, block)
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
