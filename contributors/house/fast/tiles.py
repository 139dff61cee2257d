"""Tiles of matrices, loaded and stored by kernels; see forms.py for the two ways."""

import triton
import triton.language as tl


@triton.jit
def turns(number, tiles):
    """Return how many tiles a program has, of which `number` is the first.

    A loop counts them from zero, so that it is the same in all programs: the interpreter runs the
    Python of such a loop once.
    """
    return tl.cdiv(tl.maximum(tiles - number, 0), tl.num_programs(0))


@triton.jit
def tile_of(number, row_blocks, column_blocks, GROUP: tl.constexpr):
    """Return a tile's row and column, in groups of GROUP rows of tiles, whose factors L2 keeps."""
    group = number // (GROUP * column_blocks)
    height = tl.minimum(row_blocks - group * GROUP, GROUP)
    inside = number % (GROUP * column_blocks)
    return group * GROUP + inside % height, inside // height


@triton.jit
def next_number(number, tiles):
    """Return where a program goes on among further tiles, after those from `number` on.

    So a program's share of both together is as even as if they were numbered through.
    """
    count = tl.num_programs(0)
    return (number % count + count - tiles % count) % count


@triton.jit
def choose(condition, first, second, TMA: tl.constexpr):
    """Return one of two pointers or, with TMA, descriptors: a conditional expression takes none."""
    if TMA:
        if condition:  # noqa: SIM108
            chosen = first
        else:
            chosen = second
        return chosen
    else:
        return tl.where(condition, first, second)


@triton.jit
def load_tile(
    matrix, row, column, shape, strides,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, TMA: tl.constexpr,
):  # fmt: skip
    """Return ROWS x COLUMNS elements of a matrix, zero outside of its shape."""
    if TMA:
        return matrix.load([row, column])
    else:
        row += tl.arange(0, ROWS)
        column += tl.arange(0, COLUMNS)
        place = _places(row, column, strides)
        return tl.load(
            matrix + place, (row < shape[0])[:, None] & (column < shape[1])[None, :], 0.0
        )


@triton.jit
def _places(row, column, strides):
    return row[:, None].to(tl.int64) * strides[0] + column[None, :].to(tl.int64) * strides[1]


@triton.jit
def load_factor(
    w, depth, column, shape, strides,
    DEPTH: tl.constexpr, COLUMNS: tl.constexpr, TURNED: tl.constexpr, TMA: tl.constexpr,
):  # fmt: skip
    """Return DEPTH x COLUMNS elements of a right factor; TURNED, its transpose is described."""
    if TURNED:
        return w.load([column, depth]).T
    else:
        return load_tile(w, depth, column, shape, strides, DEPTH, COLUMNS, TMA)


@triton.jit
def load_both(
    v, w, depth, column, shape, strides,
    DEPTH: tl.constexpr, COLUMNS: tl.constexpr, TMA: tl.constexpr,
):  # fmt: skip
    """Return a tile of v and, to its right, the same tile of w; with TMA, v describes both."""
    if TMA:
        return tl.reshape(v.load([0, column, depth]), (2 * COLUMNS, DEPTH)).T
    else:
        depth += tl.arange(0, DEPTH)
        both = tl.arange(0, 2 * COLUMNS)
        column += both % COLUMNS
        place = _places(depth, column, strides)
        inside = (depth < shape[0])[:, None] & (column < shape[1])[None, :]
        return tl.load(tl.where((both < COLUMNS)[None, :], v + place, w + place), inside, 0.0)


@triton.jit
def rows_of(matrix, tokens, row_stride):
    """Return pointers to the rows of these tokens, [tokens, 1]."""
    return matrix + tokens[:, None].to(tl.int64) * row_stride


@triton.jit
def load_rows(
    pointers, tokens, column, columns, column_stride, COLUMNS: tl.constexpr, WHOLE: tl.constexpr
):
    """Return COLUMNS elements of the rows that `pointers` point at; zero for token -1.

    WHOLE says that all of these columns exist.
    """
    column += tl.arange(0, COLUMNS)
    inside = (tokens >= 0)[:, None]
    if not WHOLE:
        inside = inside & (column < columns)[None, :]
    return tl.load(pointers + column[None, :].to(tl.int64) * column_stride, inside, 0.0)


@triton.jit
def store_rows(matrix, tokens, column, columns, values):
    """Store values in the rows of these tokens of a contiguous matrix; token -1 has none."""
    column += tl.arange(0, values.shape[1])
    place = tokens[:, None].to(tl.int64) * columns + column[None, :]
    inside = (tokens >= 0)[:, None] & (column < columns)[None, :]
    tl.store(matrix + place, values.to(matrix.dtype.element_ty), inside)


@triton.jit
def store_halves(matrix, tokens, column, columns, values):
    """Store values as `store_rows` does, a large block in halves: fewer registers."""
    if values.numel <= 4096:
        store_rows(matrix, tokens, column, columns, values)
    else:
        left, right = halves(values)
        store_rows(matrix, tokens, column, columns, left)
        store_rows(matrix, tokens, column + left.shape[1], columns, right)


@triton.jit
def halves(values):
    """Return the left and the right half of a block's columns."""
    ROWS: tl.constexpr = values.shape[0]
    HALF: tl.constexpr = values.shape[1] // 2
    return tl.split(tl.permute(tl.reshape(values, (ROWS, 2, HALF)), (0, 2, 1)))
