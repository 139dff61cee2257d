"""Where a kernel finds the rows of sorted tokens, and a copy of those that lie apart."""

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from .forms import HOPPER, Matrix, ceil_div, form_of, is_small, overlapping
from .launch import Uneven, contiguous
from .tiles import load_rows, rows_of, store_rows

GATHERED, PIECES, SORTED = "gathered", "pieces", "sorted"
PACKED = 32, 256
"""The rows and columns that a program packs. Its 64 elements a thread take so few registers that
two programs run besides one of a product in the form HOPPER."""


class Rows(NamedTuple):
    """A factor of sorted tokens.

    GATHERED, its rows are in the order of the tokens: with descriptors the partition's whole tiles
    are loaded whole, and each other row by itself. PIECES, they are too, but the other tiles are
    loaded from a sorted copy. SORTED, the rows lie as the partition sorts them.
    """

    matrix: Matrix  # [tokens, columns], or SORTED the rows of [pairs, rows, columns]
    how: str = GATHERED
    packed: torch.Tensor | None = None  # the copy, [rows, columns]

    @classmethod
    def of(cls, tensor, packed=None):
        """Return rows in the order of the tokens, of which there may be a copy."""
        return cls(Matrix.of(tensor), GATHERED if packed is None else PIECES, packed)

    @classmethod
    def sorted(cls, tensor):
        """Return rows as the partition sorts them."""
        return cls(Matrix.of(tensor), SORTED)

    def sources(self, form, height, width):
        """Return how a kernel loads tiles [height, width], and from what: whole ones, and apart."""
        if not form.TMA:  # all rows are loaded one by one
            return SORTED if self.how == SORTED else GATHERED, *[self.matrix.tensor] * 2
        whole = self.matrix.tiles(height, width)
        if self.how == PIECES:
            return self.how, whole, Matrix.of(self.packed).tiles(height, width)
        return self.how, whole, self.matrix.tensor if self.how == GATHERED else whole


def require_even(tile, rows, *weights):
    """Raise Uneven for tensors that no kernel takes as they lie.

    rows: those whose rows must be contiguous, unless the op is small; weights: groups of tensors of
    the same strides; tile: the rows of a partition's tile.
    """
    uneven = [each for each in rows if not is_small(tile) and each.stride()[1] != 1]
    for group in weights:
        if len({each.stride() for each in group}) > 1:
            uneven += group
    if uneven:
        raise Uneven(*uneven)


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
def _pack_kernel(
    matrix, packed, order, all_rows, columns, row_stride,
    HEIGHT: tl.constexpr, COLUMNS: tl.constexpr, PDL: tl.constexpr = False,
):  # fmt: skip
    """Copy the rows of the tiles that are not whole, and no other.

    With PDL, programs run while the kernel before this one does, and nothing here depends on it.
    The last program waits for its end, so that the kernel after this one begins after both.

    Bytes: twice the matrix for a random mask, nearly none for spans.
    """
    row, column = tl.program_id(0) * HEIGHT, tl.program_id(1) * COLUMNS
    ends = order + all_rows
    whole = tl.load(ends + tl.where(row < tl.load(ends), 2, 3))  # the kind's whole tiles end here
    if (row >= whole) & (row < tl.load(ends + 1)):
        tokens = tl.load(order + row + tl.arange(0, HEIGHT))
        source = rows_of(matrix, tokens, row_stride)
        tile = load_rows(source, tokens, column, columns, 1, COLUMNS, False)
        store_rows(packed, row + tl.arange(0, HEIGHT), column, columns, tile)
    if PDL:
        last = tl.num_programs(0) * tl.num_programs(1) - 1
        if tl.program_id(1) * tl.num_programs(0) + tl.program_id(0) == last:
            tl.extra.cuda.gdc_wait()


def pack(s, order, rows, early=False):
    """Return a factor, Rows of [tokens, columns], as PIECES.

    It stays as it is if it is not GATHERED, or if no descriptor describes the matrix, or its copy.
    Early, packing begins while the launch before it runs, if that one triggers it: a product keeps
    the tensor cores busy, packing the memory.
    """
    matrix, (height, width) = rows.matrix, PACKED
    copy = matrix._replace(strides=contiguous(matrix.shape))
    if rows.how != GATHERED or not form_of(matrix, copy, height=order.tile).TMA:
        return rows
    columns, overlaps = matrix.shape[1], overlapping(HOPPER) if early else {}
    packed = s.empty(order.rows, columns)
    s.launch(
        _pack_kernel, (order.rows // height, ceil_div(columns, width)),
        matrix.tensor, packed, order.sorted, order.rows, columns, matrix.strides[0],
        HEIGHT=height, COLUMNS=width, num_warps=4, **overlaps,
    )  # fmt: skip
    return Rows(matrix, PIECES, packed)


def packed_if_it_pays(s, order, rows, columns, launches=1):
    """Return a factor of a product with so many columns, packed if that pays.

    Of tiles that are not whole, a copy saves a twentieth of the product's time, 2 * columns FLOPs
    an element; the copy of a random mask takes 2 * itemsize bytes an element. It pays earlier if
    several launches use it.
    """
    return pack(s, order, rows) if columns * launches >= 8192 else rows
