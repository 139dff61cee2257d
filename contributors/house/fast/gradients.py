"""Gradients of weights: sums over the tokens of either kind, split in a fixed order."""

import torch
import triton
import triton.language as tl

from . import tiles
from .forms import NARROW, SMALL, form_of, gpu, kernel_of
from .launch import ceil_div
from .tiles import choose, load_rows, pack, rows_of, start_of, store_rows


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
    factor, place, row, column, columns,
    DEPTH: tl.constexpr, COLUMNS: tl.constexpr, HOW: tl.constexpr, FULL: tl.constexpr,
):  # fmt: skip
    """Return some columns of DEPTH sorted rows, from `row` on, whose place is known.

    factor: The matrix, what its rows apart are loaded from, and their stride.
    """
    matrix, apart, stride = factor
    if HOW == "tiles":
        return matrix.load([row, column])
    elif HOW == "pieces":
        source = choose(place >= 0, matrix, apart)
        return source.load([tl.where(place >= 0, place, row), column])
    else:
        if HOW == "rows":
            place = row + tl.arange(0, DEPTH)
        return load_rows(rows_of(apart, place, stride), place, column, columns, COLUMNS, FULL)


@triton.jit
def _weight_kernel(
    g, g_apart, x, x_apart, out, order, rows, outputs, inputs, g_row, x_row, shares,
    FORM: tl.constexpr, PAIRS: tl.constexpr, G: tl.constexpr, X: tl.constexpr, TILE: tl.constexpr,
    FULL: tl.constexpr, BY_KIND: tl.constexpr,
):  # fmt: skip
    """Compute d_w[kind, pair] = the sum of the outer products g[pair, token] x[token] of a kind.

    With one share, a program has some tiles of every pair's [outputs, inputs], and `out` is d_w.
    With more, a program has one tile and one share of the sorted rows. Share s stores visual sums
    in slot s of `out` and textual ones in slot s + 1: the kinds meet within one share alone, so
    that a slot has one kind. BY_KIND, the two shares are all rows of either kind, and `out` is d_w.

    out [shares + 1, PAIRS, outputs, inputs], or [2, PAIRS, outputs, inputs]. g [tokens, outputs] or
    [PAIRS, rows, outputs] and x [tokens, inputs] or [rows, inputs]: G and X say how rows are
    loaded, as `Rows` has it. TILE: the rows of a partition's tile; FULL: tiles divide both widths.

    Bytes: g and x are read and the slots written, if L2 keeps what several programs read.
    FLOPs: 2 * PAIRS * tokens * outputs * inputs.
    """
    M: tl.constexpr = FORM.M
    N: tl.constexpr = FORM.N
    K: tl.constexpr = FORM.K
    visual_steps, steps = tl.load(order + rows) // K, tl.load(order + rows + 1) // K
    row_blocks, column_blocks = tl.cdiv(outputs, M), tl.cdiv(inputs, N)
    count = row_blocks * column_blocks * PAIRS
    of_g, of_x = (g, g_apart, g_row), (x, x_apart, x_row)
    number = tl.program_id(0)
    share, length = number // count, tl.cdiv(steps, shares)
    begin, end = tl.minimum(share * length, steps), tl.minimum(share * length + length, steps)
    for kind in tl.static_range(1 if BY_KIND else 2):
        if BY_KIND:
            first, last = share * visual_steps, tl.where(share == 0, visual_steps, steps)
        elif kind == 0:
            first, last = begin, tl.minimum(end, visual_steps)
        else:
            first, last = tl.maximum(begin, visual_steps), end
        if BY_KIND or (first < last) | (shares == 1):
            for unit in tl.range(number, count * shares, tl.num_programs(0), flatten=True):
                block, column_block = tiles.tile_of(unit % count, row_blocks * PAIRS, column_blocks)
                pair = block // row_blocks
                row, column = block % row_blocks * M, column_block * N
                acc = tl.zeros((M, N), tl.float32)
                # A step's place is loaded one step ahead: the loads of its rows wait for nothing.
                g_place = _place_of(order, first * K, K, TILE, G)
                x_place = _place_of(order, first * K, K, TILE, X)
                for step in range(first, last):
                    g_row_0 = pair * rows + step * K
                    g_tile = _load_step(of_g, g_place, g_row_0, row, outputs, K, M, G, FULL)
                    x_tile = _load_step(of_x, x_place, step * K, column, inputs, K, N, X, FULL)
                    acc = tl.dot(g_tile.T, x_tile, acc, input_precision="ieee")
                    following = tl.minimum(step + 1, last - 1) * K
                    g_place = _place_of(order, following, K, TILE, G)
                    x_place = _place_of(order, following, K, TILE, X)
                # by kind, the share is the slot, and `kind` is 0
                slot = unit // count + kind
                to = out + (slot * PAIRS + pair).to(tl.int64) * outputs * inputs
                place = row + tl.arange(0, M)
                place = tl.where(place < outputs, place, -1)
                store_rows(to, place, column, inputs, acc)


@triton.jit
def _sum_kernel(slots, out, order, rows, shares, size, STEP: tl.constexpr, BLOCK: tl.constexpr):
    """Add the slots of one kind in order, for BLOCK elements of size; no slot is a sum of zero.

    slots [shares + 1, size], out [2, size]; sums are split only where size is small.
    Bytes: 4 * (shares + 1) * size read, and out written.
    """
    visual_steps, steps = tl.load(order + rows) // STEP, tl.load(order + rows + 1) // STEP
    kind, length = tl.program_id(1), tl.cdiv(steps, shares)
    first, end = 0, tl.cdiv(visual_steps, length)
    if kind == 1:
        first = visual_steps // length + 1
        end = tl.where(visual_steps < steps, tl.cdiv(steps, length) + 1, first)
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    acc = tl.zeros((BLOCK,), tl.float32)
    for slot in range(first, end):
        acc += tl.load(slots + slot * size + place, place < size, 0.0)
    to = out + kind * size + place
    tl.store(to, acc.to(out.dtype.element_ty), place < size)


ROWS_BY_KIND = 2816
"""Rows up to which a program sums a whole kind. Its loop is longer than that over a share, but no
second launch has to add shares. At 4,096 rows it was faster only for kinds of equal size."""


def weight_gradients(launch, g, x, plan, pairs=1, early=False):
    """Return the gradients [2 * pairs, outputs, inputs]: of the visual weights, then the textual.

    Kinds are the shares where rows are few and all tiles of both run at once: then packing gathered
    factors takes longer than it saves. Otherwise factors are packed, and there are as many shares
    as run at once, of at least eight steps each, or one.

    g: the products' gradient, Rows of [tokens, outputs] or sorted ones of [pairs * rows, outputs];
    x: their factor, Rows of [tokens, inputs] or sorted ones; pairs: the products of each token;
    early: whether the launch before lets packing begin, as `pack` has it.
    """
    outputs, inputs = g.matrix.shape[1], x.matrix.shape[1]

    def tiles_of(form):
        return pairs * ceil_div(outputs, form.M) * ceil_div(inputs, form.N)

    height = SMALL.M if plan.tile == SMALL.M else 128
    shape = 2 * pairs * outputs, inputs
    form = form_of(g.matrix, x.matrix, height=height, shape=shape)
    both = 2 * tiles_of(form)
    by_kind = form is NARROW and plan.rows <= ROWS_BY_KIND and form.programs_for(both) == both
    if not by_kind:
        form = form_of(g.matrix, x.matrix, height=height)
        g, x = pack(launch, plan, g, early=early), pack(launch, plan, x, early=early)
    count = tiles_of(form)
    shares = 2 if by_kind else max(min(gpu().processors // count, plan.rows // form.K // 8), 1)
    slots = d_w = g.matrix.new_empty(2 * pairs, outputs, inputs)
    if shares > 1 and not by_kind:
        slots = d_w.new_empty(shares + 1, pairs, outputs, inputs, dtype=torch.float32)
    g_how, *g_sources = g.sources(form, form.K, form.M)
    x_how, *x_sources = x.sources(form, form.K, form.N)
    launch(
        kernel_of(_weight_kernel, plan.tile), (form.programs_for(count * shares),),
        *g_sources, *x_sources, slots, plan.order, plan.rows, outputs, inputs,
        g.matrix.stride()[0], x.matrix.stride()[0], shares,
        PAIRS=pairs, G=g_how, X=x_how, TILE=plan.tile, BY_KIND=by_kind,
        FULL=form is not SMALL and outputs % form.M == inputs % form.N == 0, **form.options,
    )  # fmt: skip
    if slots is not d_w:
        size, block = pairs * outputs * inputs, 2048
        launch(
            kernel_of(_sum_kernel, plan.tile), (ceil_div(size, block), 2),
            slots, d_w, plan.order, plan.rows, shares, size, STEP=form.K, BLOCK=block,
        )  # fmt: skip
    return d_w
