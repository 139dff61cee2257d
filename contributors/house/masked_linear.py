"""Tokens sorted by kind on the device; each tile takes one product with its kind's weight."""

# out[token] = x[token] @ (mask[token] ? w_v : w_t).T
#
# forward   the sort of the mask; a product of sorted tiles, rows read and stored by their tokens
# backward  d_x by the same product; d_w by sums over shares of the sorted rows, added in order

import grouped
import torch
import triton
import triton.language as tl


@triton.jit
def _product_kernel(
    a,  # pointer, [tokens, depths]; SORTED, a descriptor of tiles of [rows, PAIRS * depths]
    v_tiles,  # of the visual weights, [PAIRS, depths, columns]; TRANSPOSED, [.., columns, depths]
    t_tiles,  # of the textual weights
    weights,  # pointers, compared by `is_swapped`: tiles of a pair have the lower one first
    out,  # [tokens, columns], contiguous, the result
    order,  # int32 [rows]
    ends,  # int32 [2]
    sizes,  # depths, columns; a's row stride, elements
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,  # rows and columns of a tile
    BLOCK_K: tl.constexpr,  # depths of a step of the inner loop
    PAIRS: tl.constexpr,  # products to add: 1, or 2 in masked_ffn, SORTED then
    TRANSPOSED: tl.constexpr, SORTED: tl.constexpr,
    WHOLE: tl.constexpr,  # whether steps fill the depths
):  # fmt: skip
    """Compute out[token] = a[token] @ (visual ? w_v : w_t), for a program's tiles.

    Bytes: a, the weights and the order are read and out is written once, if L2 keeps the tiles
    that several programs read. FLOPs: 2 * PAIRS * tokens * depths * columns.
    """
    grouped.wait()
    depths, columns, a_row = sizes
    visual_end, end = tl.load(ends), tl.load(ends + 1)
    row_blocks, column_blocks = end // BLOCK_M, tl.cdiv(columns, BLOCK_N)
    tiles, steps = row_blocks * column_blocks, tl.cdiv(depths, BLOCK_K)
    # A program a multiprocessor; together they go through all tiles. Triton fuses this loop with
    # the one over depths (`flatten`), so that the next tile is loaded while this one is stored.
    for number in tl.range(tl.program_id(0), tiles, tl.num_programs(0), flatten=True):
        row_block, column_block = grouped.tile_at(number, row_blocks, column_blocks)
        row, column = row_block * BLOCK_M, column_block * BLOCK_N
        visual = row < visual_end
        w = grouped.choose(visual, v_tiles, t_tiles)
        if PAIRS == 2:
            swapped = grouped.is_swapped(weights, visual)
        tokens = tl.load(order + row + tl.arange(0, BLOCK_M))
        if not SORTED:  # not in the loop, where each instruction delays the next product
            pointers = grouped.pointers_to(a, tokens, a_row)
        acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        for step in range(0, PAIRS * steps):
            second = (step >= steps).to(tl.int32) if PAIRS == 2 else 0
            depth = (step - second * steps) * BLOCK_K
            if SORTED:
                a_tile = a.load([row, second * depths + depth])  # past its half: w_tile is 0 there
            else:
                a_tile = grouped.load_columns(pointers, tokens, depth, depths, BLOCK_K, WHOLE)
            at = second ^ swapped if PAIRS == 2 else 0
            if TRANSPOSED:
                w_tile = tl.reshape(w.load([at, column, depth]), (BLOCK_N, BLOCK_K)).T
            else:
                w_tile = tl.reshape(w.load([at, depth, column]), (BLOCK_K, BLOCK_N))
            acc = tl.dot(a_tile, w_tile, acc, input_precision="ieee")
        grouped.store_rows(out, tokens, column, acc, row_stride=columns, limit=columns)


def product(a, visual, textual, plan, transposed, a_sorted=False):
    """Return [tokens, columns]: each token's row of `a` times the weight of its kind.

    Args:
        a: [tokens, depths]; sorted, [rows, depths of one weight and then of the other], which may
            be a few more than the weights have, if these are zero.
        visual: The weight in a list, [depths, columns], transposed [columns, depths]; or
            two weights, whose products are added.
        textual: The same for the textual tokens.
    """
    a, blocks = grouped.aligned(a), grouped.blocks_for(a)
    m, n, k = blocks["BLOCK_M"], blocks["BLOCK_N"], blocks["BLOCK_K"]
    columns, depths = visual[0].shape[0 if transposed else 1], a.shape[1] // len(visual)
    block = (1, n, k) if transposed else (1, k, n)
    v_tiles, *v_weights = grouped.tiles_of_weights(visual, *block)
    t_tiles, *t_weights = grouped.tiles_of_weights(textual, *block)
    out, sizes = a.new_empty(plan.tokens, columns), (depths, columns, a.stride(0))
    tiles = len(plan.order) // m * triton.cdiv(columns, n)
    if plan.tokens:
        _product_kernel[(min(tiles, grouped.processors(a)),)](
            grouped.tiles_of(a, m, k) if a_sorted else a, v_tiles, t_tiles,
            (*v_weights, *t_weights), out, plan.order, plan.ends, sizes, **blocks,
            PAIRS=len(visual), TRANSPOSED=transposed, SORTED=a_sorted, WHOLE=depths % k == 0,
        )  # fmt: skip
    return out


@triton.jit
def _sums_kernel(
    g,  # the products' gradient, [tokens, outputs]; SORTED, tiles of [rows, outputs]
    x,  # tiles of their factor, [tokens, inputs]; x_packed None: sorted, [rows, inputs]
    x_packed,  # tiles of its packed rows, [rows, inputs], or None
    slots,  # [shares + 1, outputs, inputs], the result
    order,  # int32 [rows]
    ends,  # int32 [2]
    sizes,  # outputs, inputs, shares; g's row stride, elements
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,  # outputs and inputs of a tile
    BLOCK_K: tl.constexpr, SORTED: tl.constexpr,  # rows of a step; whether g is sorted
):  # fmt: skip
    """Sum g[row] x[row], an outer product, over a share of the sorted rows, for a tile.

    Share s stores its visual sum in slot s and its textual one in slot s + 1. Textual rows follow
    all visual ones, so that no slot gets two sums. A single share's slots are the results.

    Bytes: g and x are read and the slots written, if L2 keeps what several programs read.
    FLOPs: 2 * tokens * outputs * inputs.
    """
    grouped.wait()
    outputs, inputs, shares, g_row = sizes
    visual_steps, steps = tl.load(ends) // BLOCK_K, tl.load(ends + 1) // BLOCK_K
    row_blocks, column_blocks = tl.cdiv(outputs, BLOCK_M), tl.cdiv(inputs, BLOCK_N)
    share = tl.program_id(0) // (row_blocks * column_blocks)
    number = tl.program_id(0) % (row_blocks * column_blocks)
    row_block, column_block = grouped.tile_at(number, row_blocks, column_blocks)
    output, column, length = row_block * BLOCK_M, column_block * BLOCK_N, tl.cdiv(steps, shares)
    first, last = tl.minimum(share * length, steps), tl.minimum(share * length + length, steps)
    for kind in range(2):
        begin = tl.where(kind == 0, first, tl.maximum(first, visual_steps))
        end = tl.where(kind == 0, tl.minimum(last, visual_steps), last)
        if (begin < end) | (shares == 1):
            acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
            for step in range(begin, end):
                row = step * BLOCK_K
                if SORTED:
                    g_tile = g.load([row, output])
                else:
                    tokens = tl.load(order + row + tl.arange(0, BLOCK_K))
                    at = grouped.pointers_to(g, tokens, g_row)
                    g_tile = grouped.load_columns(at, tokens, output, outputs, BLOCK_M, False)
                if x_packed is None:
                    x_tile = x.load([row, column])
                else:
                    run = grouped.run_at(order, row, BLOCK_K)
                    rows_of_x = grouped.choose(run >= 0, x, x_packed)
                    x_tile = rows_of_x.load([tl.where(run >= 0, run, row), column])
                acc = tl.dot(g_tile.T, x_tile, acc, input_precision="ieee")
            slot = slots + (share + kind).to(tl.int64) * outputs * inputs
            rows = output + tl.arange(0, BLOCK_M)
            rows = tl.where(rows < outputs, rows, -1)
            grouped.store_rows(slot, rows, column, acc, row_stride=inputs, limit=inputs)


@triton.jit
def _add_kernel(
    slots,  # float32 [shares + 1, size]
    out,  # [2, size], the result
    ends,  # int32 [2]
    sizes,  # elements of a slot; shares
    STEP: tl.constexpr, BLOCK: tl.constexpr,  # rows of a step, elements of a program
):  # fmt: skip
    """Add a kind's slots in order, the same bits in each run; `_sums_kernel` says which they are.

    Bytes: 4 * (shares + 1) * size read, and out written.
    """
    grouped.wait()
    size, shares = sizes
    kind = tl.program_id(1)
    visual_steps, steps = tl.load(ends) // STEP, tl.load(ends + 1) // STEP
    length = tl.cdiv(steps, shares)
    first, end = 0, tl.cdiv(visual_steps, length)
    if kind == 1:
        first = visual_steps // length + 1
        end = tl.where(visual_steps < steps, tl.cdiv(steps, length) + 1, first)
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    acc = tl.zeros((BLOCK,), tl.float32)
    for slot in range(first, end):
        acc += tl.load(slots + slot.to(tl.int64) * size + place, place < size, 0.0)
    tl.store(out + kind * size + place, acc.to(out.dtype.element_ty), place < size)


def weight_gradients(g, x, plan, g_sorted=False):
    """Return the gradients of the visual and of the textual weight, [2, outputs, inputs].

    g: The products' gradient, [tokens, outputs]; sorted, [rows, outputs].
    x: The products' factor and its packed rows, by `pack`; or sorted, [rows, inputs], and None.
    """
    g, blocks = grouped.aligned(g), grouped.blocks_for(g)
    outputs, inputs = g.shape[1], x[0].shape[1]
    m, n, k = blocks["BLOCK_M"], blocks["BLOCK_N"], blocks["BLOCK_K"]
    d_w = g.new_empty(2, outputs, inputs)
    if not plan.tokens:
        return d_w.zero_()
    tiles = triton.cdiv(outputs, m) * triton.cdiv(inputs, n)
    # as many shares as run at once, of about eight steps at least
    shares, slots = max(min(grouped.processors(d_w) // tiles, len(plan.order) // k // 8), 1), d_w
    if shares > 1:
        slots = d_w.new_empty(shares + 1, outputs, inputs, dtype=torch.float32)
    blocks["num_stages"] += 1  # some for places, three for rows (145 KiB): docs/masked.md, Stages
    _sums_kernel[(tiles * shares,)](
        grouped.tiles_of(g, k, m) if g_sorted else g,
        *(None if each is None else grouped.tiles_of(each, k, n) for each in x),
        slots, plan.order, plan.ends, (outputs, inputs, shares, g.stride(0)), **blocks,
        SORTED=g_sorted,
    )  # fmt: skip
    if shares > 1:
        sizes, grid = (outputs * inputs, shares), (triton.cdiv(outputs * inputs, 1024), 2)
        _add_kernel[grid](slots, d_w, plan.ends, sizes, k, 1024, **grouped.early(d_w))
    return d_w


class _MaskedLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w_v, w_t, mask):
        ctx.plan = grouped.sort(mask, grouped.blocks_for(x)["BLOCK_M"])
        ctx.save_for_backward(x, w_v, w_t)
        return product(x, [w_v], [w_t], ctx.plan, transposed=True)

    @staticmethod
    def backward(ctx, g):
        if torch.is_grad_enabled():  # create_graph: a second derivative would be wrong, silently
            raise NotImplementedError("masked_linear has no second derivative")
        (x, w_v, w_t), plan = ctx.saved_tensors, ctx.plan
        of_x, of_v, of_t, _ = ctx.needs_input_grad
        d_x = product(g, [w_v], [w_t], plan, transposed=False) if of_x else None
        wanted = of_v or of_t
        d_v, d_t = weight_gradients(g, grouped.pack(plan, x), plan) if wanted else (None, None)
        return d_x, d_v, d_t, None


def check(x, mask, **weights):
    """Raise ValueError unless each weight, `name=(weight, shape)`, and the mask fit x."""
    if mask.dtype != torch.bool or x.dim() != 2 or mask.shape != x.shape[:1]:
        raise ValueError(f"mask {[*mask.shape]}, {mask.dtype}, is not bool [tokens]: {[*x.shape]}")
    if x.dtype not in (torch.bfloat16, torch.float16, torch.float32):
        raise ValueError(f"x is {x.dtype}, not bfloat16, float16 or float32")
    for name, (weight, shape) in weights.items():
        if weight.shape != shape or (weight.dtype, weight.device) != (x.dtype, x.device):
            found = f"{[*weight.shape]} of {weight.dtype} on {weight.device}"
            raise ValueError(f"{name} is not {[*shape]} of {x.dtype} on {x.device}: {found}")


def masked_linear(
    x: torch.Tensor, w_v: torch.Tensor, w_t: torch.Tensor, mask: torch.Tensor
) -> torch.Tensor:
    """Return x @ w_v.T for the tokens of the mask and x @ w_t.T for the others.

    x: [tokens, in]; w_v, w_t: [out, in]; mask: bool [tokens]. Returns [tokens, out] in x's dtype.
    Other shapes and dtypes are a ValueError.
    """
    shape = len(w_v), *x.shape[1:]
    check(x, mask, w_v=(w_v, shape), w_t=(w_t, shape))
    return _MaskedLinear.apply(x, w_v, w_t, mask)
