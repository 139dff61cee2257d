"""Products of each token with the weight of its kind, over the tiles of a partition."""

import triton
import triton.language as tl

from .forms import (
    ceil_div,
    form_of,
    is_turned,
    is_whole,
    overlapping,
    plan_for,
    programs_for,
    tiles_of,
)
from .rows import blocks_of, matrices, tiles_of_rows
from .sequence import alike
from .tiles import (
    choose,
    load_factor,
    load_rows,
    load_tile,
    next_number,
    rows_of,
    store_halves,
    tile_of,
    turns,
)


@triton.jit
def _product_kernel(
    a, apart, v, t, v2, t2, out, order, ends, rows, depths, columns,
    a_row, a_column, w_depth, w_column, out_row,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr,
    HOW: tl.constexpr, WHOLE: tl.constexpr, PAIRS: tl.constexpr, TURNED: tl.constexpr,
    TMA: tl.constexpr,
    PDL: tl.constexpr = False, TRIGGERS: tl.constexpr = False,
):  # fmt: skip
    """Compute out[token] = a[token] @ (visual ? v : t), and + a2[token] @ (visual ? v2 : t2).

    out [tokens, columns]; the weights [depths, columns], TURNED if they lie as their transposes.
    a is [tokens, depths], or, SORTED, [PAIRS, rows, depths]; see HOW in rows.py. With
    TMA, the tiles of tokens that follow one another come first, by descriptors; `apart` has the
    other tokens.

    Bytes: a, the weights and the order are read and out is written once, if L2 keeps the tiles
    that several programs read. FLOPs: 2 * PAIRS * tokens * depths * columns.
    """
    if PDL:  # the kernel before this one has ended from here on
        tl.extra.cuda.gdc_wait()
    if TRIGGERS:
        tl.extra.cuda.gdc_launch_dependents()
    number = tl.program_id(0)
    if TMA:
        number = _multiply(
            a, v, t, v2, t2, out, order, ends, number, rows, depths, columns,
            a_row, a_column, w_depth, w_column, out_row, BLOCK_M, BLOCK_N, BLOCK_K, GROUP,
            HOW, WHOLE, PAIRS, TURNED, TMA, "whole",
        )  # fmt: skip
        _multiply(
            apart, v, t, v2, t2, out, order, ends, number, rows, depths, columns,
            a_row, a_column, w_depth, w_column, out_row, BLOCK_M, BLOCK_N, BLOCK_K, GROUP,
            HOW, WHOLE, PAIRS, TURNED, TMA, "rest",
        )  # fmt: skip
    else:
        _multiply(
            apart, v, t, v2, t2, out, order, ends, number, rows, depths, columns,
            a_row, a_column, w_depth, w_column, out_row, BLOCK_M, BLOCK_N, BLOCK_K, GROUP,
            HOW, WHOLE, PAIRS, TURNED, TMA, "all",
        )  # fmt: skip


@triton.jit
def _multiply(
    a, v, t, v2, t2, out, order, ends, number, rows, depths, columns,
    a_row, a_column, w_depth, w_column, out_row,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr,
    HOW: tl.constexpr, WHOLE: tl.constexpr, PAIRS: tl.constexpr, TURNED: tl.constexpr,
    TMA: tl.constexpr, PART: tl.constexpr,
):  # fmt: skip
    """Store one part's tiles from a number on; return the number of the next part's first tile."""
    blocks, visuals, first_visual, first_textual = blocks_of(ends, BLOCK_M, PART)
    tiles, steps = blocks * tl.cdiv(columns, BLOCK_N), tl.cdiv(depths, BLOCK_K)
    for turn in tl.range(0, turns(number, tiles), flatten=True):
        tile = number + turn * tl.num_programs(0)
        block, column_block = tile_of(tile, blocks, tl.cdiv(columns, BLOCK_N), GROUP)
        visual, column = block < visuals, column_block * BLOCK_N
        row = tl.where(visual, first_visual + block, first_textual + block - visuals) * BLOCK_M
        w = choose(visual, v, t, TMA)
        if PAIRS > 1:
            w2 = choose(visual, v2, t2, TMA)
        if PART == "whole":
            token = tl.load(order + row)
            at = row if HOW == "sorted" else token
        else:
            tokens = tl.load(order + row + tl.arange(0, BLOCK_M))
            at = row
        if PART != "whole" and HOW == "gathered":
            a_rows = rows_of(a, tokens, a_row)
        acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        for step in range(0, PAIRS * steps):
            second = step >= steps
            depth = (step - second * steps) * BLOCK_K if PAIRS > 1 else step * BLOCK_K
            if PART != "whole" and HOW == "gathered":
                a_tile = load_rows(a_rows, tokens, depth, depths, a_column, BLOCK_K, WHOLE)
            else:
                a_tile = load_tile(
                    a, at + second * rows, depth, PAIRS * rows, depths, a_row, a_column,
                    BLOCK_M, BLOCK_K, TMA,
                )  # fmt: skip
            w_tile = load_factor(
                choose(second, w2, w, TMA) if PAIRS > 1 else w, depth, column, depths, columns,
                w_depth, w_column, BLOCK_K, BLOCK_N, TURNED, TMA,
            )  # fmt: skip
            acc = tl.dot(a_tile, w_tile, acc, input_precision="ieee")
        if PART == "whole":
            tokens = token + tl.arange(0, BLOCK_M)
        store_halves(out, tokens, column, columns, out_row, acc)
    return next_number(number, tiles)


def product(s, a, weights, plan, triggers=False):
    """Return [tokens, columns]: each token's row of `a` times the weight of its kind.

    Args:
        s: The sequence that gets the launch.
        a: Rows of [tokens, depths], or SORTED ones of [pairs, rows, depths].
        weights: The visual and the textual weight, [depths, columns]; two such pairs where `a` has
            two, whose products are added.
        plan: The mask's partition.
        triggers: Whether the next launch may begin while this one runs.
    """
    matrix, weights = a.matrix.flat(), alike(*weights)
    (depths, columns), pairs = weights[0].shape, len(weights) // 2
    form = form_of(
        matrix.dtype, *weights, matrix, height=plan.tile, shape=(plan.rows, columns)
    )  # fmt: skip
    m, n, k = form["BLOCK_M"], form["BLOCK_N"], form["BLOCK_K"]
    how, tiles = tiles_of_rows(matrix, a.how, plan.rows, m, k, form)
    grid = (programs_for(plan.rows // m * ceil_div(columns, n), form),)
    launch = plan_for(
        _product_kernel, plan.tile, form, grid,
        (plan.rows, depths, columns, *matrix.strides, *weights[0].strides, columns),
        (*tiles, *(tiles_of(w, k, n) for w in weights)),
        HOW=how, WHOLE=is_whole(form, (depths, k)), PAIRS=pairs,
        TURNED=form["TMA"] and is_turned(weights[0]), **overlapping(form, triggers),
    )  # fmt: skip
    out, none = s.empty(plan.tokens, columns), [None] * (4 - len(weights))
    a = matrices(a._replace(matrix=matrix), how)
    s.launch(launch, *a, *weights, *none, out, plan.order, plan.ends)
    return out
