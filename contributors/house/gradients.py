"""Gradients of weights: sums over the tokens of either kind, split in a fixed order."""

import torch
import triton
import triton.language as tl
from tiles import described, form_of, halves, load_rows, load_tile, processors, rows_of, tile_of


@triton.jit
def _load_side(
    matrix, tokens, row, column, rows, columns, row_stride, column_stride,
    DEPTH: tl.constexpr, COLUMNS: tl.constexpr, GATHERED: tl.constexpr, WHOLE: tl.constexpr,
    TMA: tl.constexpr,
):  # fmt: skip
    if GATHERED:
        pointers = rows_of(matrix, tokens, row_stride)
        return load_rows(pointers, tokens, column, columns, column_stride, COLUMNS, WHOLE)
    else:
        return load_tile(
            matrix, row, column, rows, columns, row_stride, column_stride, DEPTH, COLUMNS, TMA
        )


@triton.jit
def _store_sums(out, row, column, rows, columns, values):
    """Store a tile in four quarters, which take less shared memory than one whole."""
    left, right = halves(values)
    WIDTH: tl.constexpr = values.shape[1] // 4
    first, second = halves(left)
    third, fourth = halves(right)
    _store_sum(out, row, column, rows, columns, first)
    _store_sum(out, row, column + WIDTH, rows, columns, second)
    _store_sum(out, row, column + 2 * WIDTH, rows, columns, third)
    _store_sum(out, row, column + 3 * WIDTH, rows, columns, fourth)


@triton.jit
def _store_sum(out, row, column, rows, columns, values):
    row += tl.arange(0, values.shape[0])
    column += tl.arange(0, values.shape[1])
    inside = (row < rows)[:, None] & (column < columns)[None, :]
    place = row[:, None].to(tl.int64) * columns + column[None, :]
    tl.store(out + place, values.to(out.dtype.element_ty), inside)


@triton.jit
def _tokens_of(order, step, rows, DEPTH: tl.constexpr):
    place = step * DEPTH + tl.arange(0, DEPTH)
    return tl.load(order + place, place < rows, -1)


@triton.jit
def _unit(number, row_blocks, column_blocks, length, PAIRS: tl.constexpr, GROUP: tl.constexpr):
    """Return the first step of a unit, its share, and its tile as pair, row and column."""
    tiles = row_blocks * column_blocks * PAIRS
    share = number // tiles
    row, column = tile_of(number % tiles, row_blocks * PAIRS, column_blocks, GROUP)
    return share * length, share, row // row_blocks, row % row_blocks, column


@triton.jit
def _clear(out, rows, columns, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Fill a matrix with zeros, tile by tile."""
    column_blocks = tl.cdiv(columns, COLUMNS)
    zeros = tl.zeros((ROWS, COLUMNS), tl.float32)
    for number in range(tl.program_id(0), tl.cdiv(rows, ROWS) * column_blocks, tl.num_programs(0)):
        row, column = number // column_blocks * ROWS, number % column_blocks * COLUMNS
        _store_sum(out, row, column, rows, columns, zeros)


@triton.jit
def _cdiv(size, unit):
    """Return how many units a size takes; none if it is negative."""
    return tl.maximum(size + unit - 1, 0) // unit


@triton.jit
def _weight_kernel(
    g, x, out, order, ends, rows, outputs, inputs, g_row, g_column, x_row, x_column, shares,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr,
    PAIRS: tl.constexpr, G_GATHERED: tl.constexpr, X_GATHERED: tl.constexpr,
    WHOLE: tl.constexpr, TMA: tl.constexpr,
):  # fmt: skip
    """Compute d_w[kind, pair] = the sum of the outer products g[pair, token] x[token] of a kind.

    A unit of work is a tile of one pair's [outputs, inputs] and one share of the sorted rows. Where
    the kinds meet within a share, the program stores the first one's sum and starts another. Share
    s stores visual sums in slot s of `out` and textual ones in slot s + 1, so that a slot has one
    kind. With one share the slots are the gradients themselves.

    out [shares + 1, PAIRS, outputs, inputs]. g, if gathered [tokens, outputs], otherwise sorted
    [PAIRS, rows, outputs]; x [tokens, inputs] or [rows, inputs].

    Bytes: g and x are read and the slots written, if L2 keeps what several programs read.
    FLOPs: 2 * PAIRS * tokens * outputs * inputs.
    """
    visual_steps, steps = tl.load(ends) // BLOCK_K, tl.load(ends + 1) // BLOCK_K
    row_blocks, column_blocks = tl.cdiv(outputs, BLOCK_M), tl.cdiv(inputs, BLOCK_N)
    tiles = row_blocks * column_blocks * PAIRS
    length = tl.cdiv(steps, shares)
    unit, programs = tl.program_id(0), tl.num_programs(0)
    if (shares == 1) & ((visual_steps == 0) | (visual_steps == steps)):
        _clear(
            out + (visual_steps != 0).to(tl.int64) * PAIRS * outputs * inputs,
            PAIRS * outputs, inputs, BLOCK_M, BLOCK_N,
        )  # fmt: skip
    # The units of the last share have the steps that the others leave.
    units, earlier = (
        _cdiv(tiles * shares - unit, programs),
        _cdiv(tiles * (shares - 1) - unit, programs),
    )
    count = earlier * length + (units - earlier) * (steps - (shares - 1) * length)
    at, share, pair, row, column = _unit(unit, row_blocks, column_blocks, length, PAIRS, GROUP)
    # A step's tokens are loaded one step ahead, so that the loads of their rows wait for nothing.
    tokens = _tokens_of(order, at, rows, BLOCK_K)
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for _ in range(count):
        g_tile = _load_side(
            g, tokens, pair * rows + at * BLOCK_K, row * BLOCK_M, PAIRS * rows, outputs,
            g_row, g_column, BLOCK_K, BLOCK_M, G_GATHERED, WHOLE, TMA,
        )  # fmt: skip
        x_tile = _load_side(
            x, tokens, at * BLOCK_K, column * BLOCK_N, rows, inputs, x_row, x_column,
            BLOCK_K, BLOCK_N, X_GATHERED, WHOLE, TMA,
        )  # fmt: skip
        acc = tl.dot(g_tile.T, x_tile, acc, input_precision="ieee")
        at += 1
        last = (at == (share + 1) * length) | (at == steps)
        if last | (at == visual_steps):
            slot = share + (at > visual_steps)
            to = out + (slot * PAIRS + pair).to(tl.int64) * outputs * inputs
            _store_sums(to, row * BLOCK_M, column * BLOCK_N, outputs, inputs, acc)
            acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        if last:
            unit += programs
            at, share, pair, row, column = _unit(
                unit, row_blocks, column_blocks, length, PAIRS, GROUP
            )
        tokens = _tokens_of(order, at, rows, BLOCK_K)


@triton.jit
def _sum_kernel(slots, out, ends, shares, size, STEP: tl.constexpr, BLOCK: tl.constexpr):
    """Add the slots of one kind in order, for BLOCK elements of size; no slot is a sum of zero.

    slots [shares + 1, size], out [2, size]; sums are split only where size is small. Bytes: 4 * (shares + 1) * size read, and out written.
    """
    kind = tl.program_id(1)
    visual_steps, steps = tl.load(ends) // STEP, tl.load(ends + 1) // STEP
    length = tl.cdiv(steps, shares)
    if kind == 0:
        first, end = 0, tl.cdiv(visual_steps, length)
    else:
        first, end = visual_steps // length + 1, tl.cdiv(steps, length) + 1
        if visual_steps == steps:
            end = first
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    acc = tl.zeros((BLOCK,), tl.float32)
    for slot in range(first, end):
        acc += tl.load(slots + slot * size + place, place < size, 0.0)
    to = out + kind * size + place
    tl.store(to, acc.to(out.dtype.element_ty), place < size)


def shares_of(tiles, steps):
    """Return into how many shares to split sums so that few processors idle: at most 8.

    More than steps / 8 would leave a share less than eight steps.
    """
    most = max(min(steps // 8, 8), 1)
    programs = processors()
    busy = {
        count: tiles * count / (triton.cdiv(tiles * count, programs) * programs)
        for count in range(1, most + 1)
    }
    best = max(busy.values())
    return min(count for count in busy if busy[count] > 0.95 * best)


def weight_gradients(g, x, plan, g_gathered=True, x_gathered=True):
    """Return the gradients [2, pairs, outputs, inputs] of the visual and the textual weights.

    Args:
        g: The products' gradient, [tokens, outputs] if gathered, or else [pairs, rows, outputs],
            sorted as the plan is.
        x: The factor of those products, [tokens, inputs] if gathered, or else [rows, inputs].
        plan: The mask's partition.
        g_gathered: Whether the rows of g are in the order of the tokens.
        x_gathered: The same of x.
    """
    pairs = 1 if g_gathered else g.shape[0]
    if not plan.tokens:
        return x.new_zeros(2, pairs, g.shape[-1], x.shape[1])
    g = g if g_gathered else g.flatten(0, 1)
    outputs, inputs = g.shape[1], x.shape[1]
    sorted_ones = [] if g_gathered else [g]
    sorted_ones += [] if x_gathered else [x]
    form = form_of(*sorted_ones, g.new_empty(0, 8))
    m, n, k = form["BLOCK_M"], form["BLOCK_N"], form["BLOCK_K"]
    tiles = pairs * triton.cdiv(outputs, m) * triton.cdiv(inputs, n)
    shares = shares_of(tiles, plan.rows // k)
    d_w = x.new_empty(2, pairs, outputs, inputs)
    slots = d_w if shares == 1 else g.new_empty(shares + 1, *d_w.shape[1:], dtype=torch.float32)
    _weight_kernel[(min(tiles * shares, processors()),)](
        g if g_gathered else described(g, k, m, form), x if x_gathered else described(x, k, n, form),
        slots, plan.order, plan.ends, plan.rows, outputs, inputs, *g.stride(), *x.stride(), shares,
        PAIRS=pairs, G_GATHERED=g_gathered, X_GATHERED=x_gathered,
        WHOLE=outputs % m == 0 and inputs % n == 0, **form,
    )  # fmt: skip
    if shares > 1:
        size, block = d_w[0].numel(), 2048
        _sum_kernel[(triton.cdiv(size, block), 2)](slots, d_w, plan.ends, shares, size, k, block)
    return d_w
