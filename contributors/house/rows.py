"""Where a kernel finds the rows of sorted tokens, and a copy of those that lie apart."""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from forms import ceil_div, described, form_of, is_small
from tiles import load_rows, rows_of, store_rows

GATHERED, PIECES, SORTED = "gathered", "pieces", "sorted"


class Rows(NamedTuple):
    """A factor of sorted tokens.

    GATHERED, its rows are in the order of the tokens: with descriptors the plan's whole tiles are
    loaded whole, and each other row by itself. PIECES, they are too, but the other tiles are loaded
    from a sorted copy. SORTED, the rows lie as the plan sorts them.
    """

    matrix: torch.Tensor
    """[tokens, columns], or SORTED [pairs, rows, columns]."""
    how: str = GATHERED
    packed: torch.Tensor | None = None
    """[rows, columns]; of PIECES, the copy."""


@triton.jit
def blocks_of(ends, HEIGHT: tl.constexpr, PART: tl.constexpr):
    """Return how many blocks of HEIGHT rows a part has and how many of them are visual, and the
    first block of either kind.

    The parts are "whole", the tiles whose tokens follow one another, the "rest", and "all".
    """
    visual_end, end = tl.load(ends) // HEIGHT, tl.load(ends + 1) // HEIGHT
    whole_visual, whole_end = tl.load(ends + 2) // HEIGHT, tl.load(ends + 3) // HEIGHT
    if PART == "whole":
        return whole_visual + whole_end - visual_end, whole_visual, 0, visual_end
    elif PART == "rest":
        visual = visual_end - whole_visual
        return visual + end - whole_end, visual, whole_visual, whole_end
    else:
        return end, visual_end, 0, visual_end


@triton.jit
def start_of(order, row, TILE: tl.constexpr):
    """Return the first token of the tile at a row, if all of its tokens follow one another, or -1.

    A tile's tokens are in order, so that the first and the last one tell.
    """
    first = tl.load(order + row)
    return tl.where(tl.load(order + row + TILE - 1) - first == TILE - 1, first, -1)


@triton.jit
def is_apart(row, visual_end, whole_visual, whole_textual):
    """Return whether the tile of a row is not a whole one, given a plan's ends but the second."""
    return row >= tl.where(row < visual_end, whole_visual, whole_textual)


@triton.jit
def _pack_kernel(
    matrix, packed, order, ends, columns, row_stride, TILE: tl.constexpr, COLUMNS: tl.constexpr
):
    """Copy the rows of the tiles that are not whole, and no other.

    Bytes: twice the matrix for a random mask, nearly none for spans.
    """
    row, column = tl.program_id(0) * TILE, tl.program_id(1) * COLUMNS
    apart = is_apart(row, tl.load(ends), tl.load(ends + 2), tl.load(ends + 3))
    if apart & (row < tl.load(ends + 1)):
        tokens = tl.load(order + row + tl.arange(0, TILE))
        pointers = rows_of(matrix, tokens, row_stride)
        tile = load_rows(pointers, tokens, column, columns, 1, COLUMNS, False)
        store_rows(packed, row + tl.arange(0, TILE), column, columns, columns, tile)


def pack(plan, matrix):
    """Return a matrix [tokens, columns] as PIECES, or GATHERED where no descriptor describes it."""
    matrix = by_rows(plan, matrix)
    if not form_of(matrix.dtype, matrix, height=plan.tile)["TMA"]:
        return Rows(matrix)
    columns, block = matrix.shape[1], 128
    packed = matrix.new_empty(plan.rows, columns)
    _pack_kernel[(plan.rows // plan.tile, ceil_div(columns, block))](
        matrix, packed, plan.order, plan.ends, columns, matrix.stride(0), plan.tile, block,
        num_warps=8,
    )  # fmt: skip
    return Rows(matrix, PIECES, packed)


def by_rows(plan, matrix):
    """Return a matrix whose rows are contiguous; a small op takes any strides."""
    return matrix if is_small(plan.tile) or matrix.stride(1) == 1 else matrix.contiguous()


def rows_for(plan, matrix, columns, kept=False):
    """Return a factor of a product with so many columns, packed if that pays or the copy is kept.

    Of tiles that are not whole, a copy saves a twentieth of the product's time, 2 * columns FLOPs
    an element; the copy of a random mask takes 2 * itemsize bytes an element.
    """
    return pack(plan, matrix) if kept or columns >= 8192 else Rows(by_rows(plan, matrix))


def unpacked(plan, matrix, packed):
    """Return a factor again whose copy was kept, or pack it."""
    return pack(plan, matrix) if packed is None else Rows(by_rows(plan, matrix), PIECES, packed)


def operands(rows, height, width, form):
    """Return a factor, what its rows that lie apart are loaded from, and how.

    Without descriptors, all rows are loaded one by one.
    """
    matrix, how, packed = rows
    if not form["TMA"]:
        return matrix, matrix, SORTED if how == SORTED else GATHERED
    whole = described(matrix, height, width, form)
    if how == GATHERED:
        return whole, matrix, how
    return whole, whole if how == SORTED else described(packed, height, width, form), how
