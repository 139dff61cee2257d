"""Describe the wrong elements of a result in the op's terms, and draw them in a small picture.

For example: "positions 1 to 6 (0 is right), features 0 to 7 of 16 (the first half of what is
rotated), every batch and head".
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import combinations, pairwise

import torch
from rich.text import Text
from torch.nn.functional import avg_pool2d

from common.spec import Axis
from common.verdicts import RIGHT, SOME, WRONG, Picture

MOST_LISTED = 4
"""The most single indices that are listed."""
MOST_RIGHT = 2
"""The most right indices that are listed after a range."""
RUNS = 3
"""The most ranges that are listed."""
ORDINALS = {2: "second", 3: "third", 4: "fourth"}
WITHIN = 3
"""The fewest wrong indices for which "within" a part is reported."""
ROWS, COLUMNS = 24, 64
"""The most rows and the most columns of a picture."""
MARKS = {WRONG: ("wrong", "red"), SOME: ("wrong in part", "yellow"), RIGHT: ("right", "dim")}
"""The meaning and the style of each mark of a picture."""
TICKS = 8
"""The columns between two indices in a picture's heading."""


def describe(mask: torch.Tensor, axes: Sequence[Axis]) -> str:
    """Return the set of wrong elements in words, on one line.

    Args:
        mask: The wrong elements, bool, in any shape; at least one.
        axes: The name of each dimension.
    """
    count = int(mask.sum())
    if count == mask.numel():
        return "every element"
    wrong: list[list[int]] = []
    """For each dimension, the indices at which any element is wrong."""
    rest = mask
    while rest.dim():  # reduce the last dimension in turn: the full mask is read only twice
        by_dimension = rest.flatten(0, -2).any(0) if rest.dim() > 1 else rest
        wrong.insert(0, by_dimension.nonzero().flatten().tolist())
        rest = rest.any(-1)
    words, full = [], []
    for indices, axis, size in zip(wrong, axes, mask.shape, strict=True):
        if len(indices) < size:
            part = _part(indices, axis)
            words.append(_set(indices, axis, size, bool(part)) + part)
        elif size > 1:
            full.append(axis.name)
    if full:
        words.append(f"every {listed(full)}")
    if count < math.prod(map(len, wrong)):
        words.append("not all of those")  # the caller appends the number of wrong elements
    return ", ".join(words)


def _set(wrong: Sequence[int], axis: Axis, size: int, named: bool) -> str:
    """Describe the wrong indices of a dimension by the first form that fits.

    If `named`, the name of a part follows, and the right indices need not be listed.
    """
    runs, count = list(_runs(wrong)), len(wrong)
    first, last = wrong[0], wrong[-1]
    if count == 1:
        return f"{axis.name} {first} of {size}"
    if len(runs) == 1:
        return _range(first, last, axis, size, named)
    if size - count <= MOST_RIGHT and count > size - count:
        right = sorted(set(range(size)).difference(wrong))
        return f"every {axis.name} but {listed(right)} of {size}"
    step = wrong[1] - first
    if step in ORDINALS and count > 2 and all(b - a == step for a, b in pairwise(wrong)):
        end = "on" if last + step >= size else f"to {last} of {size}"
        return f"every {ORDINALS[step]} {axis.name} from {first} {end}"
    if count <= MOST_LISTED:
        return f"{axis.plural} {listed(wrong)} of {size}"
    if len(runs) <= RUNS:
        spans = [f"{a}" if a == b else f"{a} to {b}" for a, b in runs]
        return f"{axis.plural} {listed(spans)} of {size}"
    return f"{count} of {size} {axis.plural}"


def _range(first: int, last: int, axis: Axis, size: int, named: bool) -> str:
    right = [*range(first), *range(last + 1, size)]
    words = f"{axis.plural} {first} {'to' if last > first + 1 else 'and'} {last}"
    if len(right) <= MOST_RIGHT and not named:
        return f"{words} ({listed(right)} {'is' if len(right) == 1 else 'are'} right)"
    if last == size - 1 and size - first < first:  # probably the part after the last full tile
        return f"{axis.plural} from {first} on, the last {size - first} of {size}"
    return f"{words} of {size}"


def _runs(wrong: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield the first and the last index of each range of consecutive indices."""
    first = wrong[0]
    for one, other in pairwise(wrong):
        if other != one + 1:
            yield first, one
            first = other
    yield first, wrong[-1]


def _part(wrong: Sequence[int], axis: Axis) -> str:
    """Return the smallest named part that contains the indices, in brackets; "" if none does."""
    indices = set(wrong)
    containing = [name for name, part in axis.parts.items() if indices.issubset(part)]
    if not containing:
        return ""
    name = min(containing, key=lambda name: len(axis.parts[name]))
    if len(axis.parts[name]) == len(indices):
        return f" ({name})"
    return f" (within {name})" if len(indices) >= WITHIN else ""


def listed(words: Sequence[object]) -> str:
    """Return `a`, `a and b` or `a, b and c`."""
    *first_words, last = map(str, words)
    return f"{', '.join(first_words)} and {last}" if first_words else last


# --- the picture ----------------------------------------------------------------------------------


def picture(mask: torch.Tensor, axes: Sequence[Axis]) -> Picture | None:
    """Return a picture of the wrong elements; None if all are wrong or there is only one element.

    A cell stands for a block of indices of two dimensions, and for every index of the others.
    Block sizes are powers of two, so that the edges of blocks are also edges of tiles.

    Args:
        mask: The wrong elements, bool, in any shape.
        axes: The name of each dimension.
    """
    names = [axis.name for axis, size in zip(axes, mask.shape, strict=True) if size > 1]
    if not names or mask.all():
        return None
    mask = torch.atleast_2d(mask.squeeze())
    names = [""] * (mask.dim() - len(names)) + names
    drawings = {pair: _shares(mask, pair) for pair in combinations(range(mask.dim()), 2)}
    # the picture with the most variation over the cells, of several the one with the most cells
    variation = {pair: round(float(each.var(correction=0)), 6) for pair, each in drawings.items()}
    pair = max(drawings, key=lambda pair: (variation[pair], drawings[pair].numel()))
    marks = {0.0: RIGHT, 1.0: WRONG}
    cells = ("".join(marks.get(share, SOME) for share in row) for row in drawings[pair].tolist())
    rows, columns = (names[dim] for dim in pair)
    others = [name for dim, name in enumerate(names) if dim not in pair]
    return Picture(rows, columns, _block(mask, pair), tuple(cells), tuple(others))


def _block(mask: torch.Tensor, pair: tuple[int, int]) -> tuple[int, int]:
    """Return the smallest powers of two for whose blocks the picture is large enough."""
    height, width = (
        1 << (-(-mask.shape[dim] // most) - 1).bit_length()
        for dim, most in zip(pair, (ROWS, COLUMNS), strict=True)
    )
    return height, width


def _shares(mask: torch.Tensor, pair: tuple[int, int]) -> torch.Tensor:
    """Return the share of wrong elements in each cell of two dimensions, `[rows, columns]`."""
    others = [dim for dim in range(mask.dim()) if dim not in pair]
    shares = mask.mean(others, dtype=torch.float64) if others else mask.double()
    return avg_pool2d(shares[None], _block(mask, pair), ceil_mode=True)[0]


def drawn(picture: Picture, left: str) -> Text:
    """Return the drawing: a heading, a line for each row of cells, and a legend.

    `left` is the margin of each line.

    Example for an output of 4 positions and 16 features:

                   feature
                   0       8
        position 0 ················
                 1 ████████········
                 2 ████████········
                 3 ████████········
                   █ wrong  · right; a cell: every batch and head
    """
    height, width = picture.block
    labels = [str(index * height) if picture.rows else "" for index in range(len(picture.cells))]
    margin = len(labels[-1])
    indent = " " * (len(left) + len(picture.rows) + margin + 2)
    ticks = range(0, len(picture.cells[0]), TICKS)
    heading = "".join(f"{index * width:<{TICKS}}" for index in ticks).rstrip()
    drawing = Text(f"{indent}{picture.columns}\n{indent}{heading}\n")
    for index, (label, cells) in enumerate(zip(labels, picture.cells, strict=True)):
        name = "" if index else picture.rows
        drawing.append(f"{left}{name:{len(picture.rows)}} {label:>{margin}} ")
        for mark in cells:
            drawing.append(mark, MARKS[mark][1])
        drawing.append("\n")
    marks = [f"{mark} {words}" for mark, (words, _) in MARKS.items()
             if mark in "".join(picture.cells)]  # fmt: skip
    cell = [f"{height} x {width} elements"] * (picture.block != (1, 1))
    others = [f"every {' and '.join(picture.others)}"] * bool(picture.others)
    holds = " of ".join(cell + others)
    return drawing.append(f"{indent}{'  '.join(marks)}" + f"; a cell: {holds}" * bool(holds))
