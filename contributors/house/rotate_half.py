"""Tiles of whole rows; contiguous accesses in either layout."""

import functools

import torch
import triton
import triton.language as tl
from launch import Plan
from pairs import partner_of, partners


@triton.jit
def _rotate_half_kernel(
    x, y, rows, SIGN: tl.constexpr, WIDTH: tl.constexpr, INTERLEAVED: tl.constexpr,
    BLOCK_R: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Turn BLOCK_R rows: y1 = -SIGN x2, y2 = SIGN x1, where SIGN = -1 gives the transpose.

    Bytes: 2 * x.numel() * itemsize, since x is read once and y is written once.
    """
    row = tl.program_id(0).to(tl.int64) * BLOCK_R + tl.arange(0, BLOCK_R)[:, None]
    keep, feature = row < rows, tl.arange(0, BLOCK)[None, :]
    inside = keep & (feature < WIDTH)
    block = tl.load(x + row * WIDTH + feature, mask=inside)
    z = partners(block, x + row * WIDTH, keep, WIDTH, INTERLEAVED)
    _, first = partner_of(feature, WIDTH, INTERLEAVED)
    tl.store(y + row * WIDTH + feature, tl.where(first, -SIGN * z, SIGN * z), mask=inside)


def _arguments(itemsize: int, rows: int, width: int, interleaved: bool, sign: int) -> tuple:
    """Return the grid and the kernel's arguments behind its tensors."""
    block = triton.next_power_of_2(width)
    block_r = max(4096 // (block * itemsize), 1)  # 32 bytes for each of 128 threads
    return (triton.cdiv(rows, block_r),), (rows, sign, width, interleaved, block_r, block)


@functools.lru_cache(maxsize=1024)
def _plan(dtype: torch.dtype, *key: int) -> Plan:
    """Return the plan of a launch; a call that only looks it up takes a microsecond."""
    return Plan(_rotate_half_kernel, *_arguments(dtype.itemsize, *key))


def _launch(x: torch.Tensor, interleaved: bool, sign: int) -> torch.Tensor:
    x = x.contiguous()
    y = torch.empty_like(x)
    if x.numel():
        key = (x.numel() // x.shape[-1], x.shape[-1], interleaved, sign)
        if torch.compiler.is_compiling():  # it takes a kernel's launch into its graph, no plan's
            grid, rest = _arguments(x.dtype.itemsize, *key)
            _rotate_half_kernel[grid](x, y, *rest)
        else:
            _plan(x.dtype, *key)(x, y)
    return y


class _RotateHalf(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, interleaved):
        ctx.interleaved = interleaved
        return _launch(x, interleaved, 1)

    @staticmethod
    def backward(ctx, grad):
        return _launch(grad, ctx.interleaved, -1), None


def rotate_half(x: torch.Tensor, *, interleaved: bool = False) -> torch.Tensor:
    """Return [-x2, x1] for the halves [x1, x2] of x [..., d], d even; `interleaved`, for the pairs.

    With `interleaved`, (x[2i], x[2i + 1]) becomes (-x[2i + 1], x[2i]). Returns x's shape and dtype.
    """
    if not (x.requires_grad and torch.is_grad_enabled()):  # no gradient is due
        return _launch(x, interleaved, 1)
    return _RotateHalf.apply(x, interleaved)
