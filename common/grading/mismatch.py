"""Where a result is wrong: its wrong elements in the op's own words, and in a small picture.

For example "positions 1 to 6 (0 is right), features 0 to 7 of 16 (the first half of what is
rotated), every batch and head".
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import combinations, pairwise

import torch

from common.spec import Axis
from common.verdicts import RIGHT, SOME, WRONG, Picture

FEW = 4
"""So many single indices are listed."""
MOST_RIGHT = 2
"""So many right indices are listed beside a range."""
RUNS = 3
"""So many ranges are listed."""
ORDINALS = {2: "second", 3: "third", 4: "fourth"}
WITHIN = 3
"""From so many wrong indices on, it says something that they lie within one part."""
ROWS, COLUMNS = 24, 64
"""The most cells of a picture."""


def describe(mask: torch.Tensor, axes: Sequence[Axis]) -> str:
    """Return the set of wrong elements in words, on one line.

    Args:
        mask: The wrong elements, bool, in any shape; at least one.
        axes: The name of each dimension.
    """
    count = int(mask.sum())
    if count == mask.numel():
        return "every element"
    wrong = _indices(mask)
    several = list(zip(wrong, axes, mask.shape, strict=True))
    words = [_some(*each) for each in several if len(each[0]) < each[2]]
    if whole := [axis.name for found, axis, size in several if len(found) == size > 1]:
        words.append(f"every {_listed(whole)}")
    if count < math.prod(map(len, wrong)):
        words.append("not all of those")  # their number follows, out of all elements
    return ", ".join(words)


def _indices(mask: torch.Tensor) -> list[list[int]]:
    """Return the indices of each dimension at which any element is wrong, in order."""
    found = []
    while mask.dim():  # each dimension goes in turn, so that a large mask is read twice
        found.append(mask.flatten(0, -2).any(0) if mask.dim() > 1 else mask)
        mask = mask.any(-1)
    return [each.nonzero().flatten().tolist() for each in reversed(found)]


def _some(wrong: Sequence[int], axis: Axis, size: int) -> str:
    """Describe some of a dimension's indices, and the part that they are or lie within."""
    part = _part(wrong, axis)
    return f"{_set(wrong, axis, size, bool(part))}{part}"


def _set(wrong: Sequence[int], axis: Axis, size: int, named: bool) -> str:
    """Describe some of a dimension's indices by the first form that fits.

    `named` says that the name of a part follows, so that the right indices need not be listed.
    """
    runs, count = list(_runs(wrong)), len(wrong)
    first, last = wrong[0], wrong[-1]
    if count == 1:
        return f"{axis.name} {first} of {size}"
    if len(runs) == 1:
        return _range(first, last, axis, size, named)
    if size - count <= MOST_RIGHT and count > size - count:
        right = sorted(set(range(size)).difference(wrong))
        return f"every {axis.name} but {_listed(right)} of {size}"
    step = wrong[1] - first
    if step in ORDINALS and count > 2 and all(b - a == step for a, b in pairwise(wrong)):
        end = "on" if last + step >= size else f"to {last} of {size}"
        return f"every {ORDINALS[step]} {axis.name} from {first} {end}"
    if count <= FEW:
        return f"{axis.plural} {_listed(wrong)} of {size}"
    if len(runs) <= RUNS:
        return f"{axis.plural} {_listed([_span(*run) for run in runs])} of {size}"
    return f"{count} of {size} {axis.plural}"


def _range(first: int, last: int, axis: Axis, size: int, named: bool) -> str:
    right = [*range(first), *range(last + 1, size)]
    words = f"{axis.plural} {first} {'to' if last > first + 1 else 'and'} {last}"
    if len(right) <= MOST_RIGHT and not named:
        return f"{words} ({_listed(right)} {'is' if len(right) == 1 else 'are'} right)"
    if last == size - 1 and size - first < first:  # what is behind the last whole tile
        return f"{axis.plural} from {first} on, the last {size - first} of {size}"
    return f"{words} of {size}"


def _span(first: int, last: int) -> str:
    return str(first) if first == last else f"{first} to {last}"


def _runs(wrong: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield the first and the last index of each unbroken range."""
    first = wrong[0]
    for one, other in pairwise(wrong):
        if other != one + 1:
            yield first, one
            first = other
    yield first, wrong[-1]


def _part(wrong: Sequence[int], axis: Axis) -> str:
    """Return the named part that the indices are, or else the smallest one that holds them."""
    found = set(wrong)
    holding = [name for name, part in axis.parts.items() if found.issubset(part)]
    if not holding:
        return ""
    name = min(holding, key=lambda name: len(axis.parts[name]))
    if len(axis.parts[name]) == len(found):
        return f" ({name})"
    return f" (within {name})" if len(found) >= WITHIN else ""


def _listed(words: Sequence[object]) -> str:
    """Return `a`, `a and b` or `a, b and c`."""
    *most, last = map(str, words)
    return f"{', '.join(most)} and {last}" if most else last


# --- the picture ----------------------------------------------------------------------------------


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
    pair = max(
        combinations(range(mask.dim()), 2), key=lambda combination: _variation(shares, combination)
    )
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
        shares = torch.stack([block.mean(dim, dtype=torch.float32) for block in blocks], dim)
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
