"""Products of each token with the weight of its kind, over the tiles of a partition.

They differ in what is done with a tile of the product as it is stored.
"""

import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from . import forms, tiles
from .forms import form_of, is_transposed, tiles_of
from .launch import ceil_div
from .tiles import choose, halves, load_rows, rows_of, store_rows


@triton.jit
def _product_kernel(
    a, apart, v, t, v2, t2, out, gates, d_gates, order, rows, depths, columns,
    a_row, w_depth, w_column, v_swapped, t_swapped,
    FORM: tl.constexpr, STORES: tl.constexpr, HOW: tl.constexpr, FULL: tl.constexpr,
    PAIRS: tl.constexpr, TRANSPOSED: tl.constexpr,
    PDL: tl.constexpr = False, TRIGGERS: tl.constexpr = False,
):  # fmt: skip
    """Multiply a row of `a` for each token with v, if it is visual, or t, [depths, columns].

    a is [tokens, depths], or, sorted, [PAIRS, rows, depths]; HOW its rows are loaded says `Rows`.
    FULL: steps divide the depths; TRANSPOSED: descriptors have the weights' transposes. It STORES:

    "tokens": out[token] = a[token] @ (v or t) + a2[token] @ (v2 or t2), [tokens, columns].
    "gated": out[row] = silu(g) * u, where g = a[token] @ (v or t) and u is by v2 or t2; g and u to
        `gates` [3, rows, columns], whose last is `out`, if backward needs them. The left half of a
        tile is g and its right half u. With TMA v and t describe both weights; where they are
        swapped, u is left.
    "gradients": d_gates [2, rows, columns], given g and u in `gates` and the gradient of
        silu(g) * u, a[token] @ (v or t).

    Bytes: a, the weights, the order and the gates are read and the results written once, if L2
    keeps what several programs read. FLOPs: 2 * tokens * depths * columns, PAIRS or two times.
    """
    if PDL:  # the kernel before this one has ended from here on
        tl.extra.cuda.gdc_wait()
    if TRIGGERS:
        tl.extra.cuda.gdc_launch_dependents()
    M: tl.constexpr = FORM.M
    N: tl.constexpr = FORM.N
    K: tl.constexpr = FORM.K
    TMA: tl.constexpr = FORM.TMA
    WIDTH: tl.constexpr = N // 2 if STORES == "gated" else N
    POINTERS: tl.constexpr = HOW == "gathered" or HOW == "rows"
    column_blocks, steps = tl.cdiv(columns, WIDTH), tl.cdiv(depths, K)
    visuals, blocks = tl.load(order + rows) // M, tl.load(order + rows + 1) // M
    # "gradients" are not fused with the loop over depths: Triton would load no gates ahead.
    first, count = tl.program_id(0), tl.num_programs(0)
    for tile in tl.range(first, blocks * column_blocks, count, flatten=STORES != "gradients"):
        block, column_block = tiles.tile_of(tile, blocks, column_blocks)
        visual, row, column = block < visuals, block * M, column_block * WIDTH
        w = choose(visual, v, t)
        if v2 is not None:
            w2 = choose(visual, v2, t2)
        if not TMA:
            of_columns = tl.arange(0, N)
            if STORES == "gated":
                w = tl.where(of_columns < WIDTH, w, w2)[None, :]
            of_columns = column + of_columns % WIDTH
        tokens = tl.load(order + row + tl.arange(0, M))
        source, at = a, row  # the tile's rows lie in `source`, from `at` on
        if POINTERS:  # or one by one
            a_rows = tokens if HOW == "gathered" else row + tl.arange(0, M)
            a_rows = rows_of(apart, a_rows, a_row)
        elif HOW == "pieces":
            start = tiles.start_of(order, row, M)
            source = choose(start >= 0, a, apart)
            at = tl.where(start >= 0, start, row)
        acc = tl.zeros((M, N), tl.float32)
        for step in range(0, PAIRS * steps):
            second = step >= steps
            depth = (step - second * steps) * K if PAIRS > 1 else step * K
            if POINTERS:
                of_a = a_rows
                if PAIRS > 1:
                    of_a += (second * rows).to(tl.int64) * a_row
                a_tile = load_rows(of_a, tokens, depth, depths, K, FULL)
            else:
                from_row = at + second * rows if PAIRS > 1 else at
                a_tile = source.load([from_row, depth])
            one = choose(second, w2, w) if PAIRS > 1 else w
            if TRANSPOSED:  # gated, both weights have one descriptor
                from_column = [0, column, depth] if STORES == "gated" else [column, depth]
                w_tile = tl.reshape(one.load(from_column), (N, K)).T
            elif TMA:
                w_tile = one.load([depth, column])
            else:
                of_depths = depth + tl.arange(0, K)
                place = one + of_columns[None, :].to(tl.int64) * w_column
                inside = (of_depths < depths)[:, None] & (of_columns < columns)[None, :]
                w_tile = tl.load(rows_of(place, of_depths, w_depth), inside, 0.0)
            acc = tl.dot(a_tile, w_tile, acc, input_precision="ieee")
        if STORES == "tokens":
            store_rows(out, tokens, column, columns, acc)
        elif STORES == "gated":
            swapped = tl.where(visual, v_swapped, t_swapped) != 0
            _store_gated(out, gates, row, rows, column, columns, acc, swapped)
        else:
            _store_gradients(gates, d_gates, row, rows, column, columns, acc, TMA)
    if STORES == "gated" and gates is not None:
        _clear_unused(gates, blocks * M, rows, columns)


@triton.jit
def _clear_unused(gates, used, rows, columns):
    """Store zero in the gates' rows behind the used ones, so that two calls give the same."""
    BLOCK: tl.constexpr = 1024
    start, size = used.to(tl.int64) * columns, (rows - used) * columns
    for first in range(tl.program_id(0) * BLOCK, size, tl.num_programs(0) * BLOCK):
        place = first + tl.arange(0, BLOCK)
        for gate in tl.static_range(3):
            to = gates + gate * rows.to(tl.int64) * columns + start + place
            tl.store(to, tl.zeros((BLOCK,), gates.dtype.element_ty), place < size)


@triton.jit
def _store_gated(hidden, gates, row, rows, column, columns, both, swapped):
    """Store silu(g) * u for a tile of g and u, and both where they are kept."""
    left, right = halves(both)
    g, u = tl.where(swapped, right, left), tl.where(swapped, left, right)
    place = row + tl.arange(0, both.shape[0])
    store_rows(hidden, place, column, columns, g * _sigmoid(g) * u)
    if gates is not None:
        store_rows(gates, place, column, columns, g)
        store_rows(gates, rows + place, column, columns, u)


@triton.jit
def _sigmoid(a):
    """Return 1 / (1 + exp(-a)); a division takes twice the instructions of a squared root."""
    root = tl.rsqrt(1.0 + tl.exp2(a * -1.4426950408889634))  # log2(e)
    return root * root


@triton.jit
def _store_gradients(gates, d_gates, row, rows, column, columns, d_hidden, TMA: tl.constexpr):
    """Store the gradients of a and b, of which hidden is silu(a) * b; s = sigmoid(a).

    d_a = d_hidden b (s + a s (1 - s)),  d_b = d_hidden a s

    In four quarters, for fewer registers; with descriptors, the gates of three are under way.
    """
    left, right = halves(d_hidden)
    d_1, d_2 = halves(left)
    d_3, d_4 = halves(right)
    WIDTH: tl.constexpr = d_1.shape[1]
    place = row + tl.arange(0, d_1.shape[0])
    for part in tl.range(0, 4, num_stages=4 if TMA else 1):
        d = tl.where(part < 2, tl.where(part == 0, d_1, d_2), tl.where(part == 2, d_3, d_4))
        at = column + part * WIDTH
        if TMA:
            a, b = tl.split(tl.permute(gates.load([0, row, at]), (1, 2, 0)))
        else:
            a = load_rows(rows_of(gates, place, columns), place, at, columns, WIDTH, False)
            b = load_rows(rows_of(gates, rows + place, columns), place, at, columns, WIDTH, False)
        a, b = a.to(tl.float32), b.to(tl.float32)
        s = _sigmoid(a)
        silu = a * s
        d_a, d_b = d * b * (s + silu * (1 - s)), d * silu
        if TMA:
            both = tl.permute(tl.join(d_a, d_b), (2, 0, 1))
            d_gates.store([0, row, at], both.to(d_gates.dtype))
        else:
            store_rows(d_gates, place, at, columns, d_a)
            store_rows(d_gates, rows + place, at, columns, d_b)


def _launch(
    launch, form, a, weights, results, plan, stores,
    factors=None, swapped=(0, 0), pairs=1, triggers=False,
):  # fmt: skip
    """Launch the kernel in a form, for Rows `a`.

    results: out, the gates and d_gates, of which the last ones may be left out; factors: what the
    weights' tiles are loaded from, if one descriptor has those of two weights.
    """
    factors = factors or [tiles_of(form, each, form.K, form.N) for each in weights]
    (depths, columns), strides = weights[0].shape, weights[0].stride()
    width = form.N // 2 if stores == "gated" else form.N
    how, *sources = a.sources(form, form.M, form.K)
    launch(
        forms.kernel_of(_product_kernel, plan.tile),
        (form.programs_for(plan.rows // form.M * ceil_div(columns, width)),),
        *sources, *factors, *[None] * (4 - len(factors)),
        *results, *[None] * (3 - len(results)), plan.order, plan.rows, depths, columns,
        a.matrix.stride()[0], *strides, *swapped,
        STORES=stores, HOW=how, FULL=form is not forms.SMALL and depths % form.K == 0,
        PAIRS=pairs, TRANSPOSED=form.TMA and is_transposed(weights[0]),
        **form.options, **forms.overlapping(form, triggers),
    )  # fmt: skip


def product(launch, a, weights, plan, triggers=False):
    """Return [tokens, columns]: each token's row of `a` times the weight of its kind.

    a: Rows of [tokens, depths], or sorted ones of [pairs * rows, depths]; weights: the visual and
    the textual one, [depths, columns], two such pairs where `a` has two, whose products are added;
    triggers: whether the next launch may begin while this one runs.
    """
    columns, how = weights[0].shape[1], {"pairs": len(weights) // 2, "triggers": triggers}
    # narrow where each of the narrow tiles, twice as many, has a multiprocessor
    shape = 2 * (plan.rows - plan.tile), columns
    form = form_of(*weights, a.matrix, height=plan.tile, shape=shape)
    out = a.matrix.new_empty(plan.tokens, columns)
    _launch(launch, form, a, weights, [out], plan, "tokens", **how)
    return out


def gated_product(launch, x, weights, apart, plan, keep):
    """Return hidden [rows, columns] and, to keep, [3, rows, columns]: g, u and hidden; all sorted.

    x: Rows of [tokens, depths]; weights: w1, u1, w3 and u3, [depths, columns]; apart: how many
    bytes behind w1 and u1 begin w3 and u3; keep: whether backward needs the gates.
    """
    form = form_of(*weights, x.matrix, pairs=apart, height=plan.tile)
    if form is forms.HOPPER and len(weights[0]) <= 2048:  # many epilogues: fewer loads ahead
        form = form._replace(stages=3)
    factors, swapped = weights, [int(form.TMA and each < 0) for each in apart]
    if form.TMA:  # one descriptor for w1 and w3, of the lower address, and one for u1 and u3
        factors = [
            tiles_of(form, weights[kind + 2 * swapped[kind]], form.K, form.N // 2, apart[kind])
            for kind in range(2)
        ]
    made = x.matrix.new_empty(3 if keep else 1, plan.rows, weights[0].shape[1])
    hidden, gates = made[-1], made if keep else None
    _launch(launch, form, x, weights, [hidden, gates], plan, "gated", factors, swapped)
    return hidden, gates


def gates_gradient(launch, g, weights, gates, plan):
    """Return the gradient of the first two gates, [2, rows, columns], sorted.

    g: Rows of [tokens, depths]; weights: w2 and u2, [depths, columns]; gates: [3, rows, columns].
    """
    form = form_of(*weights, g.matrix, gates.flatten(0, 1), height=plan.tile)
    form = forms.LIGHT if form is forms.HOPPER else form
    gates, d_gates = gates[:2], gates.new_empty(2, *gates.shape[1:])
    results = [None, gates, d_gates]
    if form.TMA:
        block = [2, form.M, form.N // 4]
        results = [None, *(TensorDescriptor.from_tensor(each, block) for each in (gates, d_gates))]
    _launch(launch, form, g, weights, results, plan, "gradients")
    return d_gates
