"""Where a kernel finds the rows of sorted tokens, and a copy of those that lie apart."""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from forms import described, form_of
from tiles import load_rows, rows_of, store_rows

GATHERED, PIECES, SORTED = "gathered", "pieces", "sorted"


class Rows(NamedTuple):
    """A factor of sorted tokens.

    GATHERED, its rows are in the order of the tokens, and each is loaded by itself. PIECES, they
    are too, but tiles of tokens that follow one another are loaded whole, and other tiles from a
    sorted copy. SORTED, the rows lie as the plan sorts them.
    """

    matrix: torch.Tensor
    """[tokens, columns], or SORTED [pairs, rows, columns]."""
    how: str = GATHERED
    packed: torch.Tensor | None = None
    """[rows, columns]; of PIECES, the copy."""


@triton.jit
def start_of(order, row, TILE: tl.constexpr):
    """Return the first token of the tile at a row, if all of its tokens follow one another, or -1.

    A kind's tokens are in order, so that the first and the last one tell.
    """
    first = tl.load(order + row)
    return tl.where(tl.load(order + row + TILE - 1) - first == TILE - 1, first, -1)


@triton.jit
def _pack_kernel(
    matrix, packed, order, ends, columns, row_stride, TILE: tl.constexpr, COLUMNS: tl.constexpr
):
    """Copy the rows of a tile whose tokens do not follow one another, and no other.

    Bytes: twice the matrix for a random mask, nearly none for spans.
    """
    row, column = tl.program_id(0) * TILE, tl.program_id(1) * COLUMNS
    if (row < tl.load(ends + 1)) & (start_of(order, row, TILE) < 0):
        tokens = tl.load(order + row + tl.arange(0, TILE))
        pointers = rows_of(matrix, tokens, row_stride)
        tile = load_rows(pointers, tokens, column, columns, 1, COLUMNS, False)
        store_rows(packed, row + tl.arange(0, TILE), column, columns, columns, tile)


def pack(plan, matrix):
    """Return a matrix [tokens, columns] as PIECES, or GATHERED where no descriptor describes it."""
    if matrix.stride(1) != 1 or not form_of(matrix.dtype, matrix, height=plan.tile)["TMA"]:
        return Rows(matrix)
    columns, block = matrix.shape[1], 128
    packed = matrix.new_empty(plan.rows, columns)
    _pack_kernel[(plan.rows // plan.tile, triton.cdiv(columns, block))](
        matrix, packed, plan.order, plan.ends, columns, matrix.stride(0), plan.tile, block,
        num_warps=8,
    )  # fmt: skip
    return Rows(matrix, PIECES, packed)


def rows_for(plan, matrix, columns, kept=False):
    """Return a factor of a product with so many columns, packed if that pays or the copy is kept.

    Whole tiles save a twentieth of the product's time, 2 * columns FLOPs an element; the copy of a
    random mask takes 2 * itemsize bytes an element.
    """
    return pack(plan, matrix) if kept or columns >= 8192 else Rows(matrix)


def unpacked(plan, matrix, packed):
    """Return a factor again whose copy was kept, or pack it."""
    return pack(plan, matrix) if packed is None else Rows(matrix, PIECES, packed)


def operands(rows, height, width, form):
    """Return a factor, its copy and how to find its rows, as a kernel takes them in a form.

    Without descriptors, pieces are gathered.
    """
    matrix, how, packed = rows
    if how == PIECES and not form["TMA"]:
        how = GATHERED
    if how == GATHERED:
        return matrix, None, how
    packed = None if how == SORTED else described(packed, height, width, form)
    return described(matrix, height, width, form), packed, how
