"""Gradients of weights: sums over the tokens of either kind, split in a fixed order."""

import functools

import torch
import triton
import triton.language as tl

from .forms import (
    NARROW,
    ceil_div,
    form_of,
    height_of_sums,
    is_whole,
    kernel_of,
    plan_for,
    processors,
    programs_for,
)
from .launch import Plan
from .rows import SORTED, matrices, pack, start_of, tiles_of_rows
from .tiles import choose, halves, load_rows, load_tile, rows_of, tile_of, turns


@triton.jit
def _place_of(order, row, DEPTH: tl.constexpr, TILE: tl.constexpr, HOW: tl.constexpr):
    """Return where DEPTH sorted rows are: their tokens, or the first one's, or nothing of use."""
    if HOW == "gathered":
        return tl.load(order + row + tl.arange(0, DEPTH))
    elif HOW == "pieces":
        start = start_of(order, row // TILE * TILE, TILE)
        return tl.where(start >= 0, start + row % TILE, -1)
    else:
        return row


@triton.jit
def _load_step(
    matrix, apart, place, base, row, column, all_rows, columns, row_stride, column_stride,
    DEPTH: tl.constexpr, COLUMNS: tl.constexpr, HOW: tl.constexpr, WHOLE: tl.constexpr,
    TMA: tl.constexpr,
):  # fmt: skip
    """Return some columns of DEPTH sorted rows, from `row` on, whose place is known."""
    if HOW == "gathered":
        pointers = rows_of(apart, place, row_stride)
        return load_rows(pointers, place, column, columns, column_stride, COLUMNS, WHOLE)
    elif HOW == "pieces":
        return choose(place >= 0, matrix, apart, TMA).load(
            [tl.where(place >= 0, place, row), column]
        )
    else:
        return load_tile(
            matrix, base + row, column, all_rows, columns, row_stride, column_stride,
            DEPTH, COLUMNS, TMA,
        )  # fmt: skip


@triton.jit
def _store_sums(out, row, column, rows, columns, values):
    """Store a tile, a large one in four quarters, which take less shared memory than one whole."""
    if values.numel <= 4096:
        _store_sum(out, row, column, rows, columns, values)
    else:
        _store_quarters(out, row, column, rows, columns, values)


@triton.jit
def _store_quarters(out, row, column, rows, columns, values):
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
def _sum_of_kind(
    g, g_apart, x, x_apart, out, order, first, end, kind, rows, outputs, inputs,
    g_row, g_column, x_row, x_column, shares,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr,
    PAIRS: tl.constexpr, G: tl.constexpr, X: tl.constexpr, TILE: tl.constexpr,
    WHOLE: tl.constexpr, TMA: tl.constexpr,
):  # fmt: skip
    """Store the sum over one kind's steps, from first to end, for each tile of a program.

    BY_KIND the share is the slot, so that `kind`, which is added to it, is 0.
    """
    row_blocks, column_blocks = tl.cdiv(outputs, BLOCK_M), tl.cdiv(inputs, BLOCK_N)
    tiles = row_blocks * column_blocks * PAIRS
    number = tl.program_id(0)
    for turn in tl.range(0, turns(number, tiles * shares), flatten=True):
        unit = number + turn * tl.num_programs(0)
        block, column_block = tile_of(unit % tiles, row_blocks * PAIRS, column_blocks, GROUP)
        pair, row, column = (
            block // row_blocks,
            block % row_blocks * BLOCK_M,
            column_block * BLOCK_N,
        )
        acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        # A step's place is loaded one step ahead, so that the loads of its rows wait for nothing.
        g_place = _place_of(order, first * BLOCK_K, BLOCK_K, TILE, G)
        x_place = _place_of(order, first * BLOCK_K, BLOCK_K, TILE, X)
        for step in range(first, end):
            g_tile = _load_step(
                g, g_apart, g_place, pair * rows, step * BLOCK_K, row, PAIRS * rows, outputs,
                g_row, g_column, BLOCK_K, BLOCK_M, G, WHOLE, TMA,
            )  # fmt: skip
            x_tile = _load_step(
                x, x_apart, x_place, 0, step * BLOCK_K, column, rows, inputs,
                x_row, x_column, BLOCK_K, BLOCK_N, X, WHOLE, TMA,
            )  # fmt: skip
            acc = tl.dot(g_tile.T, x_tile, acc, input_precision="ieee")
            following = tl.minimum(step + 1, end - 1) * BLOCK_K
            g_place = _place_of(order, following, BLOCK_K, TILE, G)
            x_place = _place_of(order, following, BLOCK_K, TILE, X)
        slot = unit // tiles + kind
        to = out + (slot * PAIRS + pair).to(tl.int64) * outputs * inputs
        _store_sums(to, row, column, outputs, inputs, acc)


@triton.jit
def _weight_kernel(
    g, g_apart, x, x_apart, out, order, ends, rows, outputs, inputs,
    g_row, g_column, x_row, x_column, shares,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr,
    PAIRS: tl.constexpr, G: tl.constexpr, X: tl.constexpr, TILE: tl.constexpr,
    WHOLE: tl.constexpr, BY_KIND: tl.constexpr, TMA: tl.constexpr,
):  # fmt: skip
    """Compute d_w[kind, pair] = the sum of the outer products g[pair, token] x[token] of a kind.

    With one share, a program has some tiles of every pair's [outputs, inputs], and `out` is d_w.
    With more, a program has one tile and one share of the sorted rows. Share s stores visual sums
    in slot s of `out` and textual ones in slot s + 1: the kinds meet within one share alone, so
    that a slot has one kind. BY_KIND the two shares are all rows of either kind, and `out` is d_w.

    out [shares + 1, PAIRS, outputs, inputs], or [2, PAIRS, outputs, inputs] BY_KIND. g, if gathered
    [tokens, outputs], otherwise sorted [PAIRS, rows, outputs]; x [tokens, inputs] or
    [rows, inputs].

    Bytes: g and x are read and the slots written, if L2 keeps what several programs read.
    FLOPs: 2 * PAIRS * tokens * outputs * inputs.
    """
    visual_steps, steps = tl.load(ends) // BLOCK_K, tl.load(ends + 1) // BLOCK_K
    tiles = tl.cdiv(outputs, BLOCK_M) * tl.cdiv(inputs, BLOCK_N) * PAIRS
    share, length = 0, steps
    if shares > 1:
        share, length = tl.program_id(0) // tiles, tl.cdiv(steps, shares)
    first, end = tl.minimum(share * length, steps), tl.minimum(share * length + length, steps)
    for kind in tl.static_range(1 if BY_KIND else 2):
        if BY_KIND:
            here, until = share * visual_steps, tl.where(share == 0, visual_steps, steps)
        elif kind == 0:
            here, until = first, tl.minimum(end, visual_steps)
        else:
            here, until = tl.maximum(first, visual_steps), end
        if BY_KIND or (here < until) | (shares == 1):
            _sum_of_kind(
                g, g_apart, x, x_apart, out, order, here, until, kind, rows, outputs,
                inputs, g_row, g_column, x_row, x_column, shares,
                BLOCK_M, BLOCK_N, BLOCK_K, GROUP, PAIRS, G, X, TILE, WHOLE, TMA,
            )  # fmt: skip


@triton.jit
def _sum_kernel(slots, out, ends, shares, size, STEP: tl.constexpr, BLOCK: tl.constexpr):
    """Add the slots of one kind in order, for BLOCK elements of size; no slot is a sum of zero.

    slots [shares + 1, size], out [2, size]; sums are split only where size is small.
    Bytes: 4 * (shares + 1) * size read, and out written.
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


ROWS_BY_KIND = 2560
"""Rows up to which a program sums a whole kind. Its loop is longer than that over a share, but no
second launch has to add shares. At 4,096 rows it was faster only for kinds of equal size."""


def _split(plan, g, x, pairs):
    """Return the form, the tiles of one kind, the shares, and whether the shares are the kinds.

    Kinds are the shares where rows are few and all tiles of both run at once. Otherwise there are
    as many shares as run at once, of at least eight steps each, or one.
    """
    of_factors = functools.partial(form_of, g.dtype, g, x, height=height_of_sums(plan.tile))
    form = of_factors(shape=(2 * pairs * g.shape[1], x.shape[1]))
    tiles = pairs * _tiles_of(form, g, x)
    if form is NARROW and plan.rows <= ROWS_BY_KIND and programs_for(2 * tiles, form) == 2 * tiles:
        return form, tiles, 2, True
    form = of_factors()
    tiles = pairs * _tiles_of(form, g, x)
    return form, tiles, max(min(processors() // tiles, plan.rows // form["BLOCK_K"] // 8), 1), False


def _tiles_of(form, g, x):
    return ceil_div(g.shape[1], form["BLOCK_M"]) * ceil_div(x.shape[1], form["BLOCK_N"])


def weight_gradients(s, g, x, plan, early=False):
    """Return the gradients of the visual weights and then of the textual ones.

    They are [2 * pairs, outputs, inputs]; a g that is not sorted has one pair. Gathered factors
    are packed, unless a program sums a whole kind: then packing takes longer than it saves.

    Args:
        s: The sequence that gets the launches.
        g: The products' gradient, Rows of [tokens, outputs] or [pairs, rows, outputs].
        x: The factor of those products, Rows of [tokens, inputs] or [1, rows, inputs].
        plan: The mask's partition.
        early: Whether the launch before lets packing begin, as `pack` has it.
    """
    pairs = g.matrix.shape[0] if g.how == SORTED else 1
    g, x = (one._replace(matrix=one.matrix.flat()) for one in (g, x))
    outputs, inputs = g.matrix.shape[1], x.matrix.shape[1]
    if not plan.tokens:
        return s.zeros(2 * pairs, outputs, inputs)
    d_w = s.empty(2 * pairs, outputs, inputs)
    form, tiles, shares, by_kind = _split(plan, g.matrix, x.matrix, pairs)
    if not by_kind:
        g, x = pack(s, plan, g, x, early=early)
    m, n, k = form["BLOCK_M"], form["BLOCK_N"], form["BLOCK_K"]
    g_how, g_tiles = tiles_of_rows(g.matrix, g.how, plan.rows, k, m, form)
    x_how, x_tiles = tiles_of_rows(x.matrix, x.how, plan.rows, k, n, form)
    launch = plan_for(
        _weight_kernel, plan.tile, form, (programs_for(tiles * shares, form),),
        (plan.rows, outputs, inputs, *g.matrix.strides, *x.matrix.strides, shares),
        (*g_tiles, *x_tiles), PAIRS=pairs, G=g_how, X=x_how, TILE=plan.tile,
        WHOLE=is_whole(form, (outputs, m), (inputs, n)), BY_KIND=by_kind,
    )  # fmt: skip
    slots = d_w
    if shares > 1 and not by_kind:
        slots = s.empty(shares + 1, pairs, outputs, inputs, dtype=torch.float32)
    s.launch(launch, *matrices(g, g_how), *matrices(x, x_how), slots, plan.order, plan.ends)
    if slots is not d_w:
        size, block = pairs * outputs * inputs, 2048
        grid, kernel = (ceil_div(size, block), 2), kernel_of(_sum_kernel, plan.tile)
        s.launch(Plan(kernel, grid, (shares, size), STEP=k, BLOCK=block), slots, d_w, plan.ends)
    return d_w
