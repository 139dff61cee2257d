"""Products of each token with the weight of its kind, over the tiles of a partition.

One kernel for all: they differ in what is done with a tile of the product as it is stored.
"""

from dataclasses import dataclass, replace

import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from . import forms, tiles
from .forms import Matrix, ceil_div, form_of
from .rows import blocks_of, start_of
from .tiles import choose, halves, load_rows, rows_of, store_rows


@dataclass(frozen=True)
class Task:
    """What a launch of the kernel does."""

    stores: str  # "tokens", "gated" or "gradients"; see the kernel
    how: str  # the rows of `a` are loaded; see `Rows`
    whole: bool  # whether steps divide the depths, and the kernel is to know
    pairs: int
    turned: bool  # whether the weights lie as their transposes
    fast: bool  # whether a sigmoid may leave out the cases of the exact functions


@triton.jit
def _product_kernel(
    a, apart, v, t, v2, t2, out, gates, d_gates, order, rows, depths, columns,
    a_row, a_column, w_depth, w_column, v_swapped, t_swapped,
    FORM: tl.constexpr, TASK: tl.constexpr,
    PDL: tl.constexpr = False, TRIGGERS: tl.constexpr = False,
):  # fmt: skip
    """Multiply a row of `a` for each token with v, if it is visual, or t, [depths, columns].

    a is [tokens, depths], or, sorted, [pairs, rows, depths]. What a TASK stores:

    "tokens": out[token] = a[token] @ (v or t) + a2[token] @ (v2 or t2), [tokens, columns].
    "gated": out[row] = silu(g) * u, where g = a[token] @ (v or t) and u is by v2 or t2; both to
        `gates` [2, rows, columns], if backward needs them. Rows without a token are zero. The left
        half of a tile is g and its right half u: N / 2 columns of each. With TMA v and t describe
        both weights; where they are swapped, u is left.
    "gradients": d_gates [2, rows, columns] and, once more, out = silu(g) * u, given the gates and
        the gradient of out, a[token] @ (v or t).

    With TMA, the tiles of tokens that follow one another come first; `apart` has the other tokens.

    Bytes: a, the weights, the order and the gates are read and the results written once, if L2
    keeps the tiles that several programs read. FLOPs: 2 * pairs * tokens * depths * columns,
    "gated" 4 * tokens * depths * columns.
    """
    if PDL:  # the kernel before this one has ended from here on
        tl.extra.cuda.gdc_wait()
    if TRIGGERS:
        tl.extra.cuda.gdc_launch_dependents()
    weights, results = (v, t, v2, t2, v_swapped, t_swapped), (out, gates, d_gates)
    sizes, strides = (rows, depths, columns), ((a_row, a_column), (w_depth, w_column))
    number = tl.program_id(0)
    PARTS: tl.constexpr = 2 if FORM.TMA and TASK.stores != "gradients" else 1
    for part in tl.static_range(PARTS):
        number = _multiply(
            a, apart, weights, results, order, number, sizes, strides, FORM, TASK,
            PART="all" if PARTS == 1 else ("whole" if part == 0 else "rest"),
        )  # fmt: skip


@triton.jit
def _multiply(
    a, apart, weights, results, order, number, sizes, strides,
    FORM: tl.constexpr, TASK: tl.constexpr, PART: tl.constexpr,
):  # fmt: skip
    """Store one part's tiles from a number on; return the number of the next part's first tile."""
    v, t, v2, t2, v_swapped, t_swapped = weights
    out, gates, d_gates = results
    rows, depths, columns = sizes
    a_strides, w_strides = strides
    M: tl.constexpr = FORM.M
    N: tl.constexpr = FORM.N
    K: tl.constexpr = FORM.K
    TMA: tl.constexpr = FORM.TMA
    GROUP: tl.constexpr = FORM.GROUP
    STORES: tl.constexpr = TASK.stores
    HOW: tl.constexpr = TASK.how
    PAIRS: tl.constexpr = TASK.pairs
    WHOLE: tl.constexpr = TASK.whole
    TURNED: tl.constexpr = TASK.turned
    FAST: tl.constexpr = TASK.fast
    WIDTH: tl.constexpr = N // 2 if STORES == "gated" else N
    # One by one, not in a part of whole tiles or of a sorted matrix.
    ALONE: tl.constexpr = PART != "whole" and HOW == "gathered"
    blocks, visuals, first_visual, first_textual = blocks_of(order + rows, M, PART)
    column_blocks, steps = tl.cdiv(columns, WIDTH), tl.cdiv(depths, K)
    count = blocks * column_blocks
    # "gradients" are not fused with the loop over depths: then Triton would load no gates ahead.
    for turn in tl.range(0, tiles.turns(number, count), flatten=STORES != "gradients"):
        tile = number + turn * tl.num_programs(0)
        block, column_block = tiles.tile_of(tile, blocks, column_blocks, GROUP)
        visual, column = block < visuals, column_block * WIDTH
        row = block * M
        if PART != "all":
            row = tl.where(visual, first_visual + block, first_textual + block - visuals) * M
        w = choose(visual, v, t, TMA)
        if PAIRS > 1 or (STORES == "gated" and not TMA):
            w2 = choose(visual, v2, t2, TMA)
        source, at = apart if PART == "rest" else a, row
        if PART == "whole":
            token = tl.load(order + row)
            at = row if HOW == "sorted" else token
        elif HOW == "pieces" and PART == "all":
            start = start_of(order, row, M)
            source, at = choose(start >= 0, a, apart, TMA), tl.where(start >= 0, start, row)
        elif ALONE or STORES == "tokens":
            tokens = tl.load(order + row + tl.arange(0, M))
        if ALONE:
            a_rows = rows_of(apart, tokens, a_strides[0])
        acc = tl.zeros((M, N), tl.float32)
        for step in range(0, PAIRS * steps):
            second = step >= steps
            depth = (step - second * steps) * K if PAIRS > 1 else step * K
            if ALONE:
                a_tile = load_rows(a_rows, tokens, depth, depths, a_strides[1], K, WHOLE)
            else:
                a_tile = tiles.load_tile(
                    source, at + second * rows if PAIRS > 1 else at, depth,
                    (PAIRS * rows, depths), a_strides, M, K, TMA,
                )  # fmt: skip
            if STORES == "gated":
                w_tile = tiles.load_both(
                    w, w if TMA else w2, depth, column, (depths, columns), w_strides,
                    K, WIDTH, TMA,
                )  # fmt: skip
            else:
                w_tile = tiles.load_factor(
                    choose(second, w2, w, TMA) if PAIRS > 1 else w, depth, column,
                    (depths, columns), w_strides, K, N, TURNED, TMA,
                )  # fmt: skip
            acc = tl.dot(a_tile, w_tile, acc, input_precision="ieee")
        if STORES == "tokens":
            if PART == "whole":
                tokens = token + tl.arange(0, M)
            tiles.store_halves(out, tokens, column, columns, acc)
        elif STORES == "gated":
            swapped = tl.where(visual, v_swapped, t_swapped) != 0
            _store_gated(out, gates, row, rows, column, columns, acc, swapped, FAST)
        else:
            _store_gradients(out, gates, d_gates, row, rows, column, columns, acc, TMA, FAST)
    return tiles.next_number(number, count)


@triton.jit
def _store_gated(hidden, gates, row, rows, column, columns, both, swapped, FAST: tl.constexpr):
    """Store silu(g) * u for a tile of g and u, and both where they are kept."""
    left, right = halves(both)
    g, u = tl.where(swapped, right, left), tl.where(swapped, left, right)
    place = row + tl.arange(0, both.shape[0])
    store_rows(hidden, place, column, columns, g * _sigmoid(g, u, FAST) * u)
    if gates is not None:
        store_rows(gates, place, column, columns, g)
        store_rows(gates, rows + place, column, columns, u)


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
def _store_gradients(
    hidden, gates, d_gates, row, rows, column, columns, d_hidden,
    TMA: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    """Pass a tile of d_hidden on, a large one in four quarters, which take fewer registers."""
    if d_hidden.numel <= 4096:
        _store_part(hidden, gates, d_gates, row, rows, column, columns, d_hidden, TMA, FAST)
    else:
        left, right = halves(d_hidden)
        d_1, d_2 = halves(left)
        d_3, d_4 = halves(right)
        WIDTH: tl.constexpr = d_1.shape[1]
        # With descriptors, the gates of three quarters are under way.
        for part in tl.range(0, 4, num_stages=4 if TMA else 1):
            d = tl.where(part < 2, tl.where(part == 0, d_1, d_2), tl.where(part == 2, d_3, d_4))
            at = column + part * WIDTH
            _store_part(hidden, gates, d_gates, row, rows, at, columns, d, TMA, FAST)


@triton.jit
def _store_part(
    hidden, gates, d_gates, row, rows, column, columns, d_hidden,
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
        store_rows(hidden, place, column, columns, silu * b)
        store_rows(d_gates, place, column, columns, d_a)
        store_rows(d_gates, rows + place, column, columns, d_b)


def _launch(
    s, form, a, weights, results, order, shape, strides, stores,
    swapped=(0, 0), pairs=1, turned=False, triggers=False,
):  # fmt: skip
    """Launch the kernel in a form, for Rows `a` and weights of a shape [depths, columns]."""
    (depths, columns), width = shape, form.N // 2 if stores == "gated" else form.N
    how, *sources = a.sources(form, form.M, form.K)
    missing = [None] * (4 - len(weights)), [None] * (3 - len(results))
    whole = forms.is_whole(form, (depths, form.K))
    s.launch(
        forms.kernel_of(_product_kernel, order.tile),
        (forms.programs_for(order.rows // form.M * ceil_div(columns, width), form),),
        *sources, *weights, *missing[0], *results, *missing[1], order.sorted, order.rows,
        depths, columns, *a.matrix.strides, *strides, *swapped,
        TASK=Task(stores, how, whole, pairs, form.TMA and turned, forms.gpu().nvidia),
        **forms.options_of(form), **forms.overlapping(form, triggers),
    )  # fmt: skip


def product(s, a, weights, order, triggers=False):
    """Return [tokens, columns]: each token's row of `a` times the weight of its kind.

    a: Rows of [tokens, depths], or sorted ones of [pairs, rows, depths]; weights: the visual and
    the textual Matrix, [depths, columns], two such pairs where `a` has two, whose products are
    added; triggers: whether the next launch may begin while this one runs.
    """
    w, columns = weights[0], weights[0].shape[1]
    form = form_of(*weights, a.matrix, height=order.tile, shape=(order.rows, columns))
    out = s.empty(order.tokens, columns)
    factors = [each.factor(form, form.K, form.N) for each in weights]
    _launch(
        s, form, a, factors, [out], order, w.shape, w.strides, "tokens",
        pairs=len(weights) // 2, turned=w.turned, triggers=triggers,
    )  # fmt: skip
    return out


def gated_product(s, x, weights, apart, order, keep):
    """Return hidden [1, rows, columns] and, to keep, its gates [2, rows, columns]; both sorted.

    x: Rows of [tokens, depths]; weights: the Matrix of w1, w3, u1 and u3, [depths, columns]; apart:
    how many bytes behind w1 and u1 begin w3 and u3; keep: whether backward needs the gates.
    """
    w1, w3, u1, u3 = weights
    pairs = (w1, apart[0]), (u1, apart[1])
    form = form_of(*weights, x.matrix, pairs=pairs, height=order.tile)
    if form is forms.HOPPER and w1.shape[0] <= 2048:  # many epilogues: fewer loads ahead in them
        form = replace(form, stages=3)
    factors = [each.tensor for each in (w1, u1, w3, u3)]
    if form.TMA:
        lower = (w1 if apart[0] > 0 else w3), (u1 if apart[1] > 0 else u3)
        both = zip(lower, apart, strict=True)
        factors = [forms.tiles_of_pair(*each, form.K, form.N // 2) for each in both]
    hidden = s.empty(1, order.rows, w1.shape[1])
    gates = s.empty(2, order.rows, w1.shape[1]) if keep else None
    _launch(
        s, form, x, factors, [hidden, gates], order, w1.shape, w1.strides, "gated",
        swapped=[int(form.TMA and each < 0) for each in apart],
    )  # fmt: skip
    return hidden, gates


def gates_gradient(s, g, weights, gates, order):
    """Return the gates' gradient [2, rows, columns] and hidden [1, rows, columns], both sorted.

    g: Rows of [tokens, depths]; weights: the Matrix of w2 and u2, [depths, columns]; gates:
    [2, rows, columns].
    """
    w = weights[0]
    form = form_of(*weights, g.matrix, Matrix.of(gates), height=order.tile)
    form = forms.LIGHT if form is forms.HOPPER else form
    d_gates, hidden = s.empty(*gates.shape), s.empty(1, *gates.shape[1:])
    results = hidden, gates, d_gates
    if form.TMA:
        (_, rows, columns), block = gates.shape, (2, form.M, form.N // 4)
        of_gates = [2, rows, columns], [rows * columns, columns, 1], [*block]
        of_hidden = [each[1:] for each in of_gates]
        results = [
            TensorDescriptor(tensor, *tiles)
            for tensor, tiles in zip(results, (of_hidden, of_gates, of_gates), strict=True)
        ]
    factors = [each.factor(form, form.K, form.N) for each in weights]
    _launch(
        s, form, g, factors, results, order, w.shape, w.strides, "gradients", turned=w.turned
    )  # fmt: skip
    return d_gates, hidden
