"""Products of each token with the weight of its kind, over the tiles of a partition."""

import triton
import triton.language as tl
from forms import (
    alike,
    described,
    form_of,
    is_turned,
    is_whole,
    kernel_of,
    overlapping,
    programs_for,
)
from rows import SORTED, operands, start_of
from tiles import (
    choose,
    halves,
    load_factor,
    load_rows,
    load_tile,
    rows_of,
    store_rows,
    tile_of,
)


@triton.jit
def _product_kernel(
    a, packed, v, t, v2, t2, out, order, ends, rows, depths, columns,
    a_row, a_column, w_depth, w_column, out_row,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr,
    HOW: tl.constexpr, WHOLE: tl.constexpr, PAIRS: tl.constexpr, TURNED: tl.constexpr,
    TMA: tl.constexpr,
    PDL: tl.constexpr = False,
):  # fmt: skip
    """Compute out[token] = a[token] @ (visual ? v : t), and + a2[token] @ (visual ? v2 : t2).

    out [tokens, columns]; the weights [depths, columns], TURNED if they lie as their transposes.
    a is [tokens, depths], or, SORTED, [PAIRS, rows, depths]; see HOW in rows.py.

    Bytes: a, the weights and the order are read and out is written once, if L2 keeps the tiles
    that several programs read. FLOPs: 2 * PAIRS * tokens * depths * columns.
    """
    if PDL:  # the kernel before this one has ended from here on
        tl.extra.cuda.gdc_wait()
    visual_end, end = tl.load(ends), tl.load(ends + 1)
    row_blocks, column_blocks = end // BLOCK_M, tl.cdiv(columns, BLOCK_N)
    steps = tl.cdiv(depths, BLOCK_K)
    for number in tl.range(
        tl.program_id(0), row_blocks * column_blocks, tl.num_programs(0), flatten=True
    ):
        row_block, column_block = tile_of(number, row_blocks, column_blocks, GROUP)
        row, column = row_block * BLOCK_M, column_block * BLOCK_N
        tokens = tl.load(order + row + tl.arange(0, BLOCK_M))
        w = choose(row < visual_end, v, t)
        if PAIRS > 1:
            w2 = choose(row < visual_end, v2, t2)
        source, at = a, row
        if HOW == "gathered":
            a_rows = rows_of(a, tokens, a_row)
        elif HOW == "pieces":
            start = start_of(order, row, BLOCK_M)
            source, at = choose(start >= 0, a, packed), tl.where(start >= 0, start, row)
        acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        for step in range(0, PAIRS * steps):
            second = step >= steps
            depth = (step - second * steps) * BLOCK_K if PAIRS > 1 else step * BLOCK_K
            if HOW == "gathered":
                a_tile = load_rows(a_rows, tokens, depth, depths, a_column, BLOCK_K, WHOLE)
            else:
                a_tile = load_tile(
                    source, at + second * rows, depth, PAIRS * rows, depths, a_row, a_column,
                    BLOCK_M, BLOCK_K, TMA,
                )  # fmt: skip
            w_tile = load_factor(
                choose(second, w2, w) if PAIRS > 1 else w, depth, column, depths, columns,
                w_depth, w_column, BLOCK_K, BLOCK_N, TURNED, TMA,
            )  # fmt: skip
            acc = tl.dot(a_tile, w_tile, acc, input_precision="ieee")
        left, right = halves(acc)
        store_rows(out, tokens, column, columns, out_row, left)
        store_rows(out, tokens, column + BLOCK_N // 2, columns, out_row, right)


def product(a, weights, plan):
    """Return [tokens, columns]: each token's row of `a` times the weight of its kind.

    Args:
        a: Rows of [tokens, depths], or SORTED ones of [pairs, rows, depths].
        weights: The visual and the textual weight, [depths, columns]; two such pairs where `a` has
            two, whose products are added.
        plan: The mask's partition.
    """
    weights = alike(*weights)
    (depths, columns), pairs = weights[0].shape, len(weights) // 2
    matrix = a.matrix.flatten(0, -2)
    described_too = [matrix] if a.how == SORTED else []
    shape = plan.rows, columns
    form = form_of(matrix.dtype, *weights, *described_too, height=plan.tile, shape=shape)
    m, n, k = form["BLOCK_M"], form["BLOCK_N"], form["BLOCK_K"]
    a, packed, how = operands(a._replace(matrix=matrix), m, k, form)
    out = matrix.new_empty(plan.tokens, columns)
    grid = (programs_for(plan.rows // m * triton.cdiv(columns, n), form),)
    kernel_of(_product_kernel, plan.tile)[grid](
        a, packed, *(described(w, k, n, form) for w in weights), *[None] * (4 - len(weights)),
        out, plan.order, plan.ends, plan.rows, depths, columns,
        *matrix.stride(), *weights[0].stride(), out.stride(0),
        HOW=how, WHOLE=is_whole(form, (depths, k)), PAIRS=pairs,
        TURNED=form["TMA"] and is_turned(weights[0]),
        **form, **overlapping(form),
    )  # fmt: skip
    return out
