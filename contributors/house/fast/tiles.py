"""Where a kernel finds the rows of sorted tokens; the tiles that kernels load and store."""

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from .forms import HOPPER, form_of, overlapping, tiles_of
from .launch import ceil_div

PACKED = 32, 256
"""The rows and columns that a program packs. Its 64 elements a thread take so few registers that
two programs run besides one of a product in the form HOPPER."""
PAYS = 8192
"""Columns of products from which a copy saves more of their time, a twentieth, than it takes."""


class Rows(NamedTuple):
    """A factor of sorted tokens, [tokens, columns] or, sorted, [pairs * rows, columns].

    Its rows are "gathered", each by itself; sorted ones are "rows" that follow one another, with
    descriptors "tiles". If there is a copy, "pieces" are whole tiles, and the rest of the copy.
    """

    matrix: torch.Tensor
    packed: torch.Tensor | None = None  # the copy, sorted: [rows, columns]
    sorted: bool = False  # whether all rows lie as the partition sorts them

    def sources(self, form, height, width):
        """Return how a kernel loads tiles [height, width], and from what: whole ones, and apart."""
        whole = tiles_of(form, self.matrix, height, width)
        if self.sorted:
            return "tiles" if form.TMA else "rows", whole, whole
        if self.packed is None or not form.TMA:
            return "gathered", whole, self.matrix
        return "pieces", whole, tiles_of(form, self.packed, height, width)


@triton.jit
def start_of(order, row, TILE: tl.constexpr):
    """Return the first token of a row's tile if all follow one another (they ascend), or -1."""
    first = tl.load(order + row)
    return tl.where(tl.load(order + row + TILE - 1) - first == TILE - 1, first, -1)


@triton.jit
def _pack_kernel(
    matrix, packed, order, columns, row_stride,
    TILE: tl.constexpr, HEIGHT: tl.constexpr, COLUMNS: tl.constexpr, PDL: tl.constexpr = False,
):  # fmt: skip
    """Copy the rows of the tiles that are not whole, and no other.

    With PDL, programs run while the kernel before this one does, and nothing here depends on it.
    The last program waits for its end, so that the kernel after this one begins after both.

    Bytes: twice the matrix for a random mask, nearly none for spans.
    """
    if PDL:  # a second matrix is packed at the same time
        tl.extra.cuda.gdc_launch_dependents()
    row, column = tl.program_id(0) * HEIGHT, tl.program_id(1) * COLUMNS
    if start_of(order, row // TILE * TILE, TILE) < 0:
        tokens = tl.load(order + row + tl.arange(0, HEIGHT))
        source = rows_of(matrix, tokens, row_stride)
        tile = load_rows(source, tokens, column, columns, COLUMNS, False)
        store_rows(packed, row + tl.arange(0, HEIGHT), column, columns, tile)
    if PDL:
        last = tl.num_programs(0) * tl.num_programs(1) - 1
        if tl.program_id(1) * tl.num_programs(0) + tl.program_id(0) == last:
            tl.extra.cuda.gdc_wait()


def pack(launch, plan, rows, gain=PAYS, early=False):
    """Return a factor, Rows of [tokens, columns], with a copy.

    It stays as it is if it is sorted or has one, or if no descriptor describes the matrix, or its
    copy. gain: the columns of the products that it is a factor of, where these take rows apart too.
    Early, packing begins while the launch before it runs, if that one triggers it: a product keeps
    the tensor cores busy, packing the memory.
    """
    matrix, columns, (height, width) = rows.matrix, rows.matrix.shape[1], PACKED
    if gain < PAYS or rows.sorted or rows.packed is not None:
        return rows
    if columns * matrix.dtype.itemsize % 16 or not form_of(matrix, height=plan.tile).TMA:
        return rows
    packed = matrix.new_empty(plan.rows, columns)
    launch(
        _pack_kernel, (plan.rows // height, ceil_div(columns, width)),
        matrix, packed, plan.order, columns, matrix.stride()[0],
        TILE=plan.tile, HEIGHT=height, COLUMNS=width, num_warps=4,
        **(overlapping(HOPPER) if early else {}),
    )  # fmt: skip
    return Rows(matrix, packed)


@triton.jit
def tile_of(number, row_blocks, column_blocks):
    """Return a tile's row and column, in groups of 8 rows of tiles, whose factors L2 keeps."""
    group = number // (8 * column_blocks)
    height = tl.maximum(tl.minimum(row_blocks - group * 8, 8), 1)
    inside = number % (8 * column_blocks)
    return group * 8 + inside % height, inside // height


@triton.jit
def choose(condition, first, second):
    """Return one of two pointers or descriptors: a conditional expression takes no descriptor."""
    chosen = second
    if condition:
        chosen = first
    return chosen


@triton.jit
def rows_of(matrix, rows, row_stride):
    """Return pointers to rows of a matrix, [ROWS, 1]."""
    return matrix + rows[:, None].to(tl.int64) * row_stride


@triton.jit
def load_rows(pointers, tokens, column, columns, COLUMNS: tl.constexpr, WHOLE: tl.constexpr):
    """Return COLUMNS elements, if WHOLE all there, of rows by pointers; zero for token -1."""
    column += tl.arange(0, COLUMNS)
    inside = (tokens >= 0)[:, None]
    if not WHOLE:
        inside = inside & (column < columns)[None, :]
    return tl.load(pointers + column[None, :], inside, 0.0)


@triton.jit
def store_rows(matrix, tokens, column, columns, values):
    """Store values in the rows of these tokens of a contiguous matrix; token -1 has none."""
    if values.numel <= 8192:
        column += tl.arange(0, values.shape[1])
        inside = (tokens >= 0)[:, None] & (column < columns)[None, :]
        place = rows_of(matrix, tokens, columns) + column[None, :]
        tl.store(place, values.to(matrix.dtype.element_ty), inside)
    else:  # in parts, which take fewer registers
        left, right = halves(values)
        store_rows(matrix, tokens, column, columns, left)
        store_rows(matrix, tokens, column + left.shape[1], columns, right)


@triton.jit
def halves(values):
    """Return the left and the right half of a block's columns."""
    ROWS: tl.constexpr = values.shape[0]
    HALF: tl.constexpr = values.shape[1] // 2
    return tl.split(tl.permute(tl.reshape(values, (ROWS, 2, HALF)), (0, 2, 1)))
