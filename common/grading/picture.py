"""Reduce the wrong elements of a result to a small picture of the two dimensions that vary most."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import torch

from common.spec import Axis
from common.verdicts import RIGHT, SOME, WRONG, Picture

ROWS, COLUMNS = 24, 64
"""The most cells of a picture."""


def picture(mask: torch.Tensor, axes: Sequence[Axis]) -> Picture | None:
    """Return the picture, or None where every element is wrong, or there is only one.

    A cell stands for a block of indices of both dimensions, and for every index of the others.
    Blocks have a power of two of indices, so that their edges are the edges of tiles.

    Args:
        mask: The wrong elements, bool, in any shape.
        axes: The name of each dimension.
    """
    names = [axis.name for axis, size in zip(axes, mask.shape, strict=True) if size > 1]
    if not names or mask.all():
        return None
    mask = torch.atleast_2d(mask.squeeze())
    names = [""] * (mask.dim() - len(names)) + names
    shares = _shares(mask)
    pair = max(combinations(range(mask.dim()), 2), key=lambda each: _variation(shares, each))
    rows, columns = (names[dim] for dim in pair)
    others = [name for dim, name in enumerate(names) if dim not in pair]
    block = _block(mask.shape[pair[0]], ROWS), _block(mask.shape[pair[1]], COLUMNS)
    return Picture(rows, columns, block, _cells(mask, pair, block), tuple(others))


def _block(size: int, most: int) -> int:
    """Return the least power of two of which `most` blocks hold `size` indices."""
    return 1 << (-(-size // most) - 1).bit_length()


def _shares(mask: torch.Tensor) -> torch.Tensor:
    """Return the share of wrong elements in each block, at most COLUMNS blocks a dimension."""
    shares = mask
    for dim in sorted(range(mask.dim()), key=lambda dim: -mask.shape[dim]):  # the most goes first
        blocks = shares.split(_block(mask.shape[dim], COLUMNS), dim)
        shares = torch.stack([each.mean(dim, dtype=torch.float32) for each in blocks], dim)
    return shares


def _variation(shares: torch.Tensor, pair: tuple[int, int]) -> tuple[float, int]:
    """Return the variance of the share over the cells of two dimensions, then their number."""
    others = [dim for dim in range(shares.dim()) if dim not in pair]
    cells = shares.mean(others) if others else shares
    return round(float(cells.var(correction=0)), 6), cells.numel()


def _cells(mask: torch.Tensor, pair: tuple[int, int], block: tuple[int, int]) -> tuple[str, ...]:
    """Return the rows of the picture, a mark for each cell."""
    others = [dim for dim in range(mask.dim()) if dim not in pair]
    some, every = (mask.any(others), mask.all(others)) if others else (mask, mask)
    both = torch.stack((some, every)).cpu()
    return tuple(
        "".join(_mark(cell) for cell in row.split(block[1], 2)) for row in both.split(block[0], 1)
    )


def _mark(cell: torch.Tensor) -> str:
    """Return the mark of a cell: whether any of its elements is wrong, and whether all are."""
    some, every = cell
    return WRONG if every.all() else SOME if some.any() else RIGHT
