"""Tiles of whole rows; contiguous accesses in either layout."""

import math

import torch
import triton
import triton.language as tl

from .launch import Recorded, Uneven
from .operators import differentiable, traceable, traced
from .rope_kernel import partner_of, partners


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
    z = partners(block, x + row * WIDTH, feature, keep, WIDTH, INTERLEAVED)
    _, first = partner_of(feature, WIDTH, INTERLEAVED)
    tl.store(y + row * WIDTH + feature, tl.where(first, -SIGN * z, SIGN * z), mask=inside)


def _check(x, *how):
    if not len(x.shape) or x.shape[-1] % 2:
        raise ValueError(f"rotate_half: x {list(x.shape)} is not [..., d], d even")


@Recorded
def _map(launch, interleaved, transposed, x):
    """Return x turned."""
    _check(x)
    if not x.is_contiguous():
        raise Uneven(x)
    y = x.new_empty(x.shape)
    if 0 not in x.shape:
        rows, width = math.prod(x.shape[:-1]), int(x.shape[-1])  # torch.compile may not know it
        block = triton.next_power_of_2(width)
        block_r = max(4096 // (block * x.dtype.itemsize), 1)  # 32 bytes for each of 128 threads
        launch(
            _rotate_half_kernel, (triton.cdiv(rows, block_r),), x, y, rows,
            SIGN=-1 if transposed else 1, WIDTH=width, INTERLEAVED=interleaved,
            BLOCK_R=block_r, BLOCK=block,
        )  # fmt: skip
    return (y,)


_turn = differentiable(_map)
_operator = traceable(
    "rotate_half", "(Tensor x, bool interleaved, bool transposed) -> Tensor",
    _map, _check, _rotate_half_kernel, instead="x may have any number of dimensions",
)  # fmt: skip


def rotate_half(x: torch.Tensor, *, interleaved: bool = False) -> torch.Tensor:
    """Return [-x2, x1] for the halves [x1, x2] of x [..., d], d even; `interleaved`, for the pairs.

    With `interleaved`, (x[2i], x[2i + 1]) becomes (-x[2i + 1], x[2i]). Returns x's shape and dtype.

    Raises:
        ValueError: d is odd, or x has no dimension.
    """
    how = interleaved, False
    return _operator(x, *how) if traced() else _turn((how,), x)[0]
