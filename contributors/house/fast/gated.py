"""The products of a SwiGLU layer that apply its gate or the gate's gradient as they are stored."""

import triton
import triton.language as tl

from .descriptors import Tiles
from .forms import (
    HOPPER,
    LIGHT,
    ceil_div,
    form_of,
    is_turned,
    is_whole,
    on_nvidia,
    overlapping,
    plan_for,
    programs_for,
    tiles_of,
    tiles_of_pair,
)
from .rows import blocks_of, matrices, start_of, tiles_of_rows
from .sequence import alike
from .tiles import (
    choose,
    halves,
    load_both,
    load_factor,
    load_rows,
    next_number,
    rows_of,
    store_rows,
    tile_of,
    turns,
)


@triton.jit
def _sigmoid(a, like, FAST: tl.constexpr):
    """Return 1 / (1 + exp(-a)) for float32; FAST, without the cases of the exact functions.

    Nothing of `like` is read. It makes Triton convert a to the layout of `like` first; otherwise
    it computes the sigmoid in both layouts.
    """
    if FAST:
        return tl.inline_asm_elementwise(
            """{
            .reg .f32 t;
            mul.f32 t, $1, 0fBFB8AA3B;  // -log2(e)
            ex2.approx.ftz.f32 t, t;
            add.f32 t, t, 0f3F800000;
            rcp.approx.ftz.f32 $0, t;
            }""",
            "=f,f,f", [a, like], dtype=tl.float32, is_pure=True, pack=1,
        )  # fmt: skip
    else:
        return tl.sigmoid(a)


@triton.jit
def _up_kernel(
    x, apart, w1, w3, u1, u3, gates, hidden, order, ends, rows, depths, columns,
    x_row, x_column, w_depth, w_column, w_swapped, u_swapped,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr,
    HOW: tl.constexpr, WHOLE: tl.constexpr, TMA: tl.constexpr, FAST: tl.constexpr,
    PDL: tl.constexpr = False,
):  # fmt: skip
    """Compute hidden[row] = silu(a) * b, a = x[token] @ (visual ? w1 : u1), b with w3 and u3.

    hidden [rows, columns]; gates [2, rows, columns] gets a and b, if backward needs them. Rows
    without a token are zero. The accumulator's left half is a and its right half is b: BLOCK_N / 2
    columns of each. With TMA w1 and u1 describe both weights; where they are swapped, b is left.
    Tiles of tokens that follow one another come first; `apart` has the other tokens of x.

    Bytes: x, the weights and the order are read and hidden, and the gates, written, if L2 keeps
    what several programs read. FLOPs: 4 * tokens * depths * columns.
    """
    if PDL:  # the kernel before this one has ended from here on
        tl.extra.cuda.gdc_wait()
    number = tl.program_id(0)
    if TMA:
        number = _up(
            x, w1, w3, u1, u3, gates, hidden, order, ends, number, rows, depths, columns,
            x_row, x_column, w_depth, w_column, w_swapped, u_swapped,
            BLOCK_M, BLOCK_N, BLOCK_K, GROUP, HOW, WHOLE, TMA, FAST, "whole",
        )  # fmt: skip
        _up(
            apart, w1, w3, u1, u3, gates, hidden, order, ends, number, rows, depths, columns,
            x_row, x_column, w_depth, w_column, w_swapped, u_swapped,
            BLOCK_M, BLOCK_N, BLOCK_K, GROUP, HOW, WHOLE, TMA, FAST, "rest",
        )  # fmt: skip
    else:
        _up(
            apart, w1, w3, u1, u3, gates, hidden, order, ends, number, rows, depths, columns,
            x_row, x_column, w_depth, w_column, w_swapped, u_swapped,
            BLOCK_M, BLOCK_N, BLOCK_K, GROUP, HOW, WHOLE, TMA, FAST, "all",
        )  # fmt: skip


@triton.jit
def _up(
    x, w1, w3, u1, u3, gates, hidden, order, ends, number, rows, depths, columns,
    x_row, x_column, w_depth, w_column, w_swapped, u_swapped,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr,
    HOW: tl.constexpr, WHOLE: tl.constexpr, TMA: tl.constexpr, FAST: tl.constexpr,
    PART: tl.constexpr,
):  # fmt: skip
    """Store one part's tiles from a number on; return the number of the next part's first tile."""
    HALF: tl.constexpr = BLOCK_N // 2
    blocks, visuals, first_visual, first_textual = blocks_of(ends, BLOCK_M, PART)
    tiles = blocks * tl.cdiv(columns, HALF)
    for turn in tl.range(0, turns(number, tiles), flatten=True):
        tile = number + turn * tl.num_programs(0)
        block, column_block = tile_of(tile, blocks, tl.cdiv(columns, HALF), GROUP)
        visual, column = block < visuals, column_block * HALF
        row = tl.where(visual, first_visual + block, first_textual + block - visuals) * BLOCK_M
        w_a, swapped = choose(visual, w1, u1, TMA), tl.where(visual, w_swapped, u_swapped)
        at = row
        if PART == "whole":
            at = tl.load(order + row)
        elif HOW == "gathered":
            tokens = tl.load(order + row + tl.arange(0, BLOCK_M))
            x_rows = rows_of(x, tokens, x_row)
        acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        for depth in range(0, depths, BLOCK_K):
            if PART != "whole" and HOW == "gathered":
                x_tile = load_rows(x_rows, tokens, depth, depths, x_column, BLOCK_K, WHOLE)
            else:
                x_tile = x.load([at, depth])
            if TMA:
                w_tile = tl.reshape(w_a.load([0, column, depth]), (BLOCK_N, BLOCK_K)).T
            else:
                w_tile = load_both(
                    w_a, tl.where(visual, w3, u3), depth, column, depths, columns,
                    w_depth, w_column, BLOCK_K, HALF,
                )  # fmt: skip
            acc = tl.dot(x_tile, w_tile, acc, input_precision="ieee")
        left, right = halves(acc)
        a = tl.where(swapped != 0, right, left)
        b = tl.where(swapped != 0, left, right)
        place = row + tl.arange(0, BLOCK_M)
        store_rows(hidden, place, column, columns, columns, a * _sigmoid(a, b, FAST) * b)
        if gates is not None:
            store_rows(gates, place, column, columns, columns, a)
            store_rows(gates, rows + place, column, columns, columns, b)
    return next_number(number, tiles)


@triton.jit
def _pass_on(
    gates, d_gates, hidden, row, rows, column, columns, d_hidden,
    TMA: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    """Pass on a tile of d_hidden, a large one in four quarters, which take fewer registers."""
    if d_hidden.numel <= 4096:
        _pass_through(gates, d_gates, hidden, row, rows, column, columns, d_hidden, TMA, FAST)
    else:
        left, right = halves(d_hidden)
        d_1, d_2 = halves(left)
        d_3, d_4 = halves(right)
        WIDTH: tl.constexpr = d_1.shape[1]
        # With descriptors, the gates of three quarters are under way.
        for part in tl.range(0, 4, num_stages=4 if TMA else 1):
            d = tl.where(part < 2, tl.where(part == 0, d_1, d_2), tl.where(part == 2, d_3, d_4))
            at = column + part * WIDTH
            _pass_through(gates, d_gates, hidden, row, rows, at, columns, d, TMA, FAST)


@triton.jit
def _pass_through(
    gates, d_gates, hidden, row, rows, column, columns, d_hidden,
    TMA: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    """Store the gradients of a and b and, once more, hidden = silu(a) * b; s = sigmoid(a).

    d_a = d_hidden b (s + a s (1 - s)),  d_b = d_hidden a s
    """
    WIDTH: tl.constexpr = d_hidden.shape[1]
    place = row + tl.arange(0, d_hidden.shape[0])
    if TMA:
        a, b = tl.split(tl.permute(gates.load([0, row, column]), (1, 2, 0)))
    else:
        a = load_rows(rows_of(gates, place, columns), place, column, columns, 1, WIDTH, False)
        second = rows_of(gates, rows + place, columns)
        b = load_rows(second, place, column, columns, 1, WIDTH, False)
    a, b = a.to(tl.float32), b.to(tl.float32)
    s = _sigmoid(a, d_hidden, FAST)
    silu = a * s
    d_a, d_b = d_hidden * b * (s + silu * (1 - s)), d_hidden * silu
    if TMA:  # hidden first, since a store waits until the one before it has read shared memory
        hidden.store([row, column], (silu * b).to(hidden.dtype))
        both = tl.permute(tl.join(d_a, d_b), (2, 0, 1))
        d_gates.store([0, row, column], both.to(d_gates.dtype))
    else:
        store_rows(hidden, place, column, columns, columns, silu * b)
        store_rows(d_gates, place, column, columns, columns, d_a)
        store_rows(d_gates, rows + place, column, columns, columns, d_b)


@triton.jit
def _down_gradient_kernel(
    g, apart, w2, u2, gates, d_gates, hidden, order, ends, rows, depths, columns,
    g_row, g_column, w_depth, w_column,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr,
    HOW: tl.constexpr, WHOLE: tl.constexpr, TURNED: tl.constexpr, TMA: tl.constexpr,
    FAST: tl.constexpr,
    PDL: tl.constexpr = False,
):  # fmt: skip
    """Compute the gradient of hidden, d_hidden = g[token] @ (visual ? w2 : u2), and pass it on.

    g [tokens, depths], w2 and u2 [depths, columns]; gates, d_gates [2, rows, columns]; hidden
    [rows, columns]. In the form LIGHT two programs share a multiprocessor: one stores while the
    other multiplies.

    Bytes: g, the weights and the gates are read and their gradients and hidden written, if L2 keeps
    what several programs read. FLOPs: 2 * tokens * depths * columns.
    """
    if PDL:  # the kernel before this one has ended from here on
        tl.extra.cuda.gdc_wait()
    visual_end, end = tl.load(ends), tl.load(ends + 1)
    row_blocks, column_blocks = end // BLOCK_M, tl.cdiv(columns, BLOCK_N)
    first = tl.program_id(0)
    # Not fused with the loop over depths: then Triton would load no gates ahead.
    for turn in tl.range(0, turns(first, row_blocks * column_blocks)):
        number = first + turn * tl.num_programs(0)
        row_block, column_block = tile_of(number, row_blocks, column_blocks, GROUP)
        row, column = row_block * BLOCK_M, column_block * BLOCK_N
        w = choose(row < visual_end, w2, u2, TMA)
        source, at = g, row
        if HOW == "gathered":
            tokens = tl.load(order + row + tl.arange(0, BLOCK_M))
            g_rows = rows_of(apart, tokens, g_row)
        elif HOW == "pieces":
            start = start_of(order, row, BLOCK_M)
            source, at = choose(start >= 0, g, apart, TMA), tl.where(start >= 0, start, row)
        acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        for depth in range(0, depths, BLOCK_K):
            if HOW == "gathered":
                g_tile = load_rows(g_rows, tokens, depth, depths, g_column, BLOCK_K, WHOLE)
            else:
                g_tile = source.load([at, depth])
            w_tile = load_factor(
                w, depth, column, depths, columns, w_depth, w_column,
                BLOCK_K, BLOCK_N, TURNED, TMA,
            )  # fmt: skip
            acc = tl.dot(g_tile, w_tile, acc, input_precision="ieee")
        _pass_on(gates, d_gates, hidden, row, rows, column, columns, acc, TMA, FAST)


def up(s, x, weights, apart, plan, keep):
    """Return hidden [1, rows, columns] and, to keep, its gates [2, rows, columns]; both sorted.

    Args:
        s: The sequence that gets the launch.
        x: Rows of [tokens, depths].
        weights: w1, w3, u1 and u3 [depths, columns].
        apart: How many bytes behind w1 and u1 begin w3 and u3.
        plan: The mask's partition.
        keep: Whether backward needs the gates.
    """
    w1, w3, u1, u3 = weights = alike(*weights)
    depths, columns = w1.shape
    pairs = (w1, apart[0]), (u1, apart[1])
    form = form_of(x.matrix.dtype, *weights, x.matrix, pairs=pairs, height=plan.tile)
    if form is HOPPER and depths <= 2048:  # epilogues are often: fewer loads are under way in them
        form = {**form, "num_stages": 3}
    m, half, k = form["BLOCK_M"], form["BLOCK_N"] // 2, form["BLOCK_K"]
    how, tiles = tiles_of_rows(x.matrix, x.how, plan.rows, m, k, form)
    if form["TMA"]:
        w, u = (tiles_of_pair(*pair, k, half) for pair in pairs)
        tiles = *tiles, w, None, u
        weights = w1 if apart[0] > 0 else w3, None, u1 if apart[1] > 0 else u3, None
    swapped = (int(form["TMA"] and each < 0) for each in apart)
    grid = (programs_for(plan.rows // m * ceil_div(columns, half), form),)
    launch = plan_for(
        _up_kernel, plan.tile, form, grid,
        (plan.rows, depths, columns, *x.matrix.strides, *w1.strides, *swapped), tiles,
        HOW=how, WHOLE=is_whole(form, (depths, k)), FAST=on_nvidia(), **overlapping(form),
    )  # fmt: skip
    hidden = s.empty(1, plan.rows, columns)
    gates = s.empty(2, plan.rows, columns) if keep else None
    s.launch(launch, *matrices(x, how), *weights, gates, hidden, plan.order, plan.ends)
    return hidden, gates


def down_gradient(s, g, weights, gates, plan):
    """Return the gates' gradient [2, rows, columns] and hidden [1, rows, columns], both sorted.

    Args:
        s: The sequence that gets the launch.
        g: Rows of [tokens, depths].
        weights: w2 and u2 [depths, columns].
        gates: [2, rows, columns].
        plan: The mask's partition.
    """
    weights = alike(*weights)
    depths, columns = weights[0].shape
    form = form_of(g.matrix.dtype, *weights, g.matrix, gates.flat(), height=plan.tile)
    form = LIGHT if form is HOPPER else form
    m, n, k = form["BLOCK_M"], form["BLOCK_N"], form["BLOCK_K"]
    how, tiles = tiles_of_rows(g.matrix, g.how, plan.rows, m, k, form)
    of_gates = Tiles(gates.shape, gates.strides, (2, m, n // 4))
    of_hidden = Tiles(*(each[1:] for each in of_gates))
    grid = (programs_for(plan.rows // m * ceil_div(columns, n), form),)
    launch = plan_for(
        _down_gradient_kernel, plan.tile, form, grid,
        (plan.rows, depths, columns, *g.matrix.strides, *weights[0].strides),
        (*tiles, *(tiles_of(w, k, n) for w in weights), of_gates, of_gates, of_hidden),
        HOW=how, WHOLE=is_whole(form, (depths, k)), TURNED=form["TMA"] and is_turned(weights[0]),
        FAST=on_nvidia(), **overlapping(form),
    )  # fmt: skip
    d_gates, hidden = s.empty(*gates.shape), s.empty(1, *gates.shape[1:])
    s.launch(launch, *matrices(g, how), *weights, gates, d_gates, hidden, plan.order, plan.ends)
    return d_gates, hidden
