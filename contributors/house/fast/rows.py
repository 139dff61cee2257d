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

    matrix: Matrix
    """[tokens, columns], or SORTED the rows of [pairs, rows, columns]."""
    how: str = GATHERED
    packed: torch.Tensor | None = None
    """[rows, columns]; of PIECES, the copy."""

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

    Args:
        tile: The rows of a partition's tile.
        rows: Tensors whose rows must be contiguous; a small op takes any strides.
        weights: Groups of tensors of the same strides.
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
def is_apart(row, visual_end, whole_visual, whole_textual):
    """Return whether the tile of a row is not a whole one, given a partition's ends but the second."""
    return row >= tl.where(row < visual_end, whole_visual, whole_textual)


@triton.jit
def _pack_kernel(
    first, second, first_packed, second_packed, order, all_rows, first_columns, second_columns,
    first_row, second_row, HEIGHT: tl.constexpr, COLUMNS: tl.constexpr,
    PDL: tl.constexpr = False,
):  # fmt: skip
    """Copy the rows of the tiles that are not whole, and no other, of one matrix or of two.

    With PDL, programs run while the kernel before this one does, and nothing here depends on it.
    The last program waits for its end, so that the kernel after this one begins after both.

    Bytes: twice the matrices for a random mask, nearly none for spans.
    """
    row, block, ends = tl.program_id(0) * HEIGHT, tl.program_id(1), order + all_rows
    apart = is_apart(row, tl.load(ends), tl.load(ends + 2), tl.load(ends + 3))
    if apart & (row < tl.load(ends + 1)):
        tokens = tl.load(order + row + tl.arange(0, HEIGHT))
        blocks = tl.cdiv(first_columns, COLUMNS)
        if block < blocks:
            _copy(first, first_packed, tokens, row, block, first_columns, first_row, COLUMNS)
        elif second is not None:
            _copy(
                second, second_packed, tokens, row, block - blocks, second_columns, second_row,
                COLUMNS,
            )  # fmt: skip
    if PDL:
        last = tl.num_programs(0) * tl.num_programs(1) - 1
        if tl.program_id(1) * tl.num_programs(0) + tl.program_id(0) == last:
            tl.extra.cuda.gdc_wait()


@triton.jit
def _copy(matrix, packed, tokens, row, block, columns, row_stride, COLUMNS: tl.constexpr):
    """Copy a block of columns of these tokens to the rows from `row` on."""
    tile = load_rows(
        rows_of(matrix, tokens, row_stride), tokens, block * COLUMNS, columns, 1, COLUMNS, False
    )
    rows = row + tl.arange(0, tokens.shape[0])
    store_rows(packed, rows, block * COLUMNS, columns, tile)


def pack(s, order, *factors, early=False):
    """Return one or two factors, Rows of [tokens, columns], as PIECES, packed by one launch.

    Those that are not GATHERED stay as they are, and so does a matrix if no descriptor describes
    it, or its copy. Early, packing begins while the launch before it runs, if that one triggers it:
    a product keeps the tensor cores busy, packing the memory.
    """
    chosen = [at for at, each in enumerate(factors) if _is_packable(order, each)]
    if not chosen:
        return factors
    given = [factors[at].matrix for at in chosen]
    columns, strides = [each.shape[1] for each in given], [each.strides[0] for each in given]
    copies = [s.empty(order.rows, each) for each in columns]
    (height, width), missing = PACKED, 2 - len(chosen)
    none, zero = [None] * missing, [0] * missing
    s.launch(
        _pack_kernel, (order.rows // height, sum(ceil_div(each, width) for each in columns)),
        *[each.tensor for each in given], *none, *copies, *none, order.sorted, order.rows,
        *columns, *zero, *strides, *zero,
        HEIGHT=height, COLUMNS=width, num_warps=4, **(overlapping(HOPPER) if early else {}),
    )  # fmt: skip
    packed = dict(zip(chosen, copies, strict=True))
    return [
        each._replace(how=PIECES, packed=packed[at]) if at in packed else each
        for at, each in enumerate(factors)
    ]


def _is_packable(order, factor):
    """Return whether rows are gathered, and descriptors describe the matrix and its copy."""
    matrix = factor.matrix
    copy = matrix._replace(strides=contiguous(matrix.shape))
    return factor.how == GATHERED and form_of(matrix, copy, height=order.tile).TMA


def packed_if_it_pays(s, order, rows, columns, launches=1):
    """Return a factor of a product with so many columns, packed if that pays.

    Of tiles that are not whole, a copy saves a twentieth of the product's time, 2 * columns FLOPs
    an element; the copy of a random mask takes 2 * itemsize bytes an element. It pays earlier if
    several launches use it.
    """
    return pack(s, order, rows)[0] if columns * launches >= 8192 else rows
