"""What the three steps of masked_linear have in common: tiles, their sizes, and a check."""

import torch
import triton
import triton.language as tl


@triton.jit
def load_tile(matrix, row, column, sizes, strides):
    """Return a tile of a matrix of these sizes and strides (rows, columns), zero outside of it."""
    place = row[:, None].to(tl.int64) * strides[0] + column[None, :].to(tl.int64) * strides[1]
    return tl.load(matrix + place, (row < sizes[0])[:, None] & (column < sizes[1])[None, :], 0.0)


@triton.jit
def store_tile(matrix, row, column, sizes, values):
    """Store a tile of a contiguous matrix of these sizes, less what is outside of it."""
    place = matrix + row[:, None].to(tl.int64) * sizes[1] + column[None, :]
    there = (row < sizes[0])[:, None] & (column < sizes[1])[None, :]
    tl.store(place, values.to(matrix.dtype.element_ty), there)


def blocks_for(x):
    """Return a launch's options: [BLOCK, BLOCK] sums a tile, DEPTH products each in a pass.

    All three files take the same. float32 is multiplied without tensor cores, in more registers.
    """
    if x.dtype.itemsize == 4:
        return {"BLOCK": 64, "DEPTH": 32, "num_warps": 4}
    return {"BLOCK": 128, "DEPTH": 64, "num_warps": 8, "num_stages": 3}


def check(x, w_v, w_t, mask):
    """Raise ValueError unless the shapes and the dtypes fit: a kernel trusts its sizes."""
    if mask.dtype != torch.bool or x.dim() != 2 or mask.shape != x.shape[:1]:
        raise ValueError(f"mask {[*mask.shape]} of {mask.dtype} is not bool [{len(x)}]")
    for w in (w_v, w_t):
        if w.shape != w_v.shape or w.shape[1:] != x.shape[1:] or w.dtype != x.dtype:
            raise ValueError(f"weight {[*w.shape]} of {w.dtype} does not fit x {[*x.shape]}")
