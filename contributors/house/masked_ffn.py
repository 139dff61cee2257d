"""Tokens sorted by kind on the device; SwiGLU and its gradient in the products' epilogues."""

import grouped
import torch
import triton
import triton.language as tl
from masked_linear import check, product, weight_gradients


@triton.jit
def _sigmoid(a):
    """Return 1 / (1 + exp(-a)); by a division it takes twice the instructions."""
    root = tl.rsqrt(1.0 + tl.exp2(a * -1.4426950408889634))  # log2(e)
    return root * root


@triton.jit
def _up_kernel(
    x,  # [tokens, depths]
    v_tiles,  # of w1 and w3, [2, inner, depths]
    t_tiles,  # of u1 and u3
    weights,  # w1, w3, u1, u3: of a pair, the tiles have the lower address first
    gates,  # [rows, 2 * columns], the result: a, then b; None if backward does not need it
    hidden,  # [rows, columns], the result
    order,  # int32 [rows]
    ends,  # int32 [2]
    sizes,  # depths; columns: inner, zeros up to 16 bytes; x's row stride, elements
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,  # rows and columns of a tile: half a, half b
    BLOCK_K: tl.constexpr,  # depths of a step
    WHOLE: tl.constexpr,  # whether steps fill the depths
):  # fmt: skip
    """Compute hidden[row] = silu(a) * b, a = x[token] @ (visual ? w1 : u1).T, b with w3 and u3.

    The left half of the accumulator is a and the right half b, so that one tile serves both. Rows
    without a token are zero.

    Bytes: x, the weights and the order are read, hidden and the gates written, if L2 keeps the
    tiles that several programs read. FLOPs: 4 * tokens * depths * inner.
    """
    grouped.wait()
    depths, columns, x_row = sizes
    HALF: tl.constexpr = BLOCK_N // 2
    visual_end, end = tl.load(ends), tl.load(ends + 1)
    row_blocks, column_blocks = end // BLOCK_M, tl.cdiv(columns, HALF)
    tiles = row_blocks * column_blocks
    for number in tl.range(tl.program_id(0), tiles, tl.num_programs(0), flatten=True):
        row_block, column_block = grouped.tile_at(number, row_blocks, column_blocks)
        row, column = row_block * BLOCK_M, column_block * HALF
        visual = row < visual_end
        w = grouped.choose(visual, v_tiles, t_tiles)
        rows = row + tl.arange(0, BLOCK_M)
        tokens = tl.load(order + rows)
        pointers = grouped.pointers_to(x, tokens, x_row)
        acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        for depth in range(0, depths, BLOCK_K):
            x_tile = grouped.load_columns(pointers, tokens, depth, depths, BLOCK_K, WHOLE)
            w_tile = tl.reshape(w.load([0, column, depth]), (BLOCK_N, BLOCK_K)).T
            acc = tl.dot(x_tile, w_tile, acc, input_precision="ieee")
        left, right = grouped.halves(acc)
        swapped = grouped.is_swapped(weights, visual) != 0
        a, b = tl.where(swapped, right, left), tl.where(swapped, left, right)
        y = a * _sigmoid(a) * b
        grouped.store_rows(hidden, rows, column, y, row_stride=columns, limit=columns)
        if gates is not None:
            grouped.store_rows(gates, rows, column, a, row_stride=2 * columns, limit=columns)
            to_b = gates + columns
            grouped.store_rows(to_b, rows, column, b, row_stride=2 * columns, limit=columns)


@triton.jit
def _down_gradient_kernel(
    g,  # [tokens, depths], the output's gradient
    v_tiles,  # of w2, [depths, inner]
    t_tiles,  # of u2
    gates,  # tiles of [rows, 2, columns]: a, then b
    d_gates,  # tiles of [rows, 2, columns], the result
    order,  # int32 [rows]
    ends,  # int32 [2]
    sizes,  # depths; columns: inner, zeros up to 16 bytes; g's row stride, elements
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,  # rows and columns of a tile
    BLOCK_K: tl.constexpr,  # depths of a step
    WHOLE: tl.constexpr,  # whether steps fill the depths
):  # fmt: skip
    """Compute a tile of hidden's gradient, d = g[token] @ (visual ? w2 : u2), and pass it back.

    d_a = d b (s + a s (1 - s)),  d_b = d a s,  s = sigmoid(a)

    Bytes: g, the weights and the gates are read and the gates' gradient written, if L2 keeps the
    tiles that several programs read. FLOPs: 2 * tokens * depths * inner.
    """
    grouped.wait()
    depths, columns, g_row = sizes
    visual_end, end = tl.load(ends), tl.load(ends + 1)
    row_blocks, column_blocks = end // BLOCK_M, tl.cdiv(columns, BLOCK_N)
    row_block, column_block = grouped.tile_at(tl.program_id(0), row_blocks, column_blocks)
    if row_block < row_blocks:  # as many programs are launched as a mask can need
        row, column = row_block * BLOCK_M, column_block * BLOCK_N
        w = grouped.choose(row < visual_end, v_tiles, t_tiles)
        tokens = tl.load(order + row + tl.arange(0, BLOCK_M))
        pointers = grouped.pointers_to(g, tokens, g_row)
        acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        for depth in range(0, depths, BLOCK_K):
            g_tile = grouped.load_columns(pointers, tokens, depth, depths, BLOCK_K, WHOLE)
            acc = tl.dot(g_tile, w.load([depth, column]), acc, input_precision="ieee")
        left, right = grouped.halves(acc)
        d_0, d_1 = grouped.halves(left)
        d_2, d_3 = grouped.halves(right)
        PART: tl.constexpr = BLOCK_N // 4
        # In quarters, as a loop: Triton loads the gates of the next three while it works on one.
        for part in tl.range(0, 4, num_stages=4):
            d = tl.where(part < 2, tl.where(part == 0, d_0, d_1), tl.where(part == 2, d_2, d_3))
            at = column + part * PART
            a = tl.reshape(gates.load([row, 0, at]), (BLOCK_M, PART)).to(tl.float32)
            b = tl.reshape(gates.load([row, 1, at]), (BLOCK_M, PART)).to(tl.float32)
            s = _sigmoid(a)
            d_a, d_b = d * b * (s + a * s * (1 - s)), d * a * s
            d_gates.store([row, 0, at], tl.reshape(d_a, (BLOCK_M, 1, PART)).to(d_gates.dtype))
            d_gates.store([row, 1, at], tl.reshape(d_b, (BLOCK_M, 1, PART)).to(d_gates.dtype))


def up(x, visual, textual, plan, keep):
    """Return hidden [rows, columns], sorted, and its gates [rows, 2 * columns] or None.

    Args:
        x: [tokens, width]
        visual: w1 and w3, [inner, width]; `columns` is inner, rounded up to 16 bytes.
        textual: u1 and u3.
        plan: The Sorted tokens.
        keep: Whether backward needs the gates.
    """
    x, blocks, rows = grouped.aligned(x), grouped.blocks_for(x), len(plan.order)
    inner, depths = visual[0].shape
    hidden = grouped.new_rows(x, rows, inner)
    columns = hidden.shape[1]
    gates = x.new_empty(rows, 2 * columns) if keep else None
    block = 2, blocks["BLOCK_N"] // 2, blocks["BLOCK_K"]
    v_tiles, *v_weights = grouped.tiles_of_weights(visual, *block)
    t_tiles, *t_weights = grouped.tiles_of_weights(textual, *block)
    tiles = rows // blocks["BLOCK_M"] * triton.cdiv(columns, block[1])
    if plan.tokens:
        _up_kernel[(min(tiles, grouped.processors(x)),)](
            x, v_tiles, t_tiles, (*v_weights, *t_weights), gates, hidden, plan.order, plan.ends,
            (depths, columns, x.stride(0)), **blocks, WHOLE=depths % block[2] == 0,
        )  # fmt: skip
    return hidden, gates


def down_gradient(g, w2, u2, gates, plan):
    """Return the gradient of the gates, [rows, 2 * columns], sorted.

    g: [tokens, width]; w2, u2: [width, inner]; gates: [rows, 2 * columns].
    """
    g, w2, u2 = (grouped.aligned(each) for each in (g, w2, u2))
    blocks, d_gates = grouped.blocks_for(g), torch.empty_like(gates)
    if blocks["BLOCK_N"] == 256:  # two programs on a multiprocessor: one stores, one multiplies
        blocks |= {"BLOCK_N": 128, "num_warps": 4, "num_stages": 3}
    m, n, k = blocks["BLOCK_M"], blocks["BLOCK_N"], blocks["BLOCK_K"]
    depths, columns = len(w2), gates.shape[1] // 2
    gate_tiles = (
        grouped.tiles_of(each.unflatten(1, (2, -1)), m, 1, n // 4) for each in (gates, d_gates)
    )
    if plan.tokens:
        _down_gradient_kernel[(len(plan.order) // m * triton.cdiv(columns, n),)](
            g, grouped.tiles_of(w2, k, n), grouped.tiles_of(u2, k, n), *gate_tiles, plan.order,
            plan.ends, (depths, columns, g.stride(0)), **blocks, WHOLE=depths % k == 0,
        )  # fmt: skip
    return d_gates


class _MaskedFFN(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w1, w2, w3, u1, u2, u3, mask):
        ctx.plan = plan = grouped.sort(mask, grouped.blocks_for(x)["BLOCK_M"])
        hidden, gates = up(x, (w1, w3), (u1, u3), plan, keep=any(ctx.needs_input_grad))
        ctx.save_for_backward(x, w1, w2, w3, u1, u2, u3, gates, hidden)
        return product(hidden, [w2], [u2], plan, transposed=True, a_sorted=True)

    @staticmethod
    def backward(ctx, g):
        if torch.is_grad_enabled():  # create_graph: a second derivative would be wrong, silently
            raise NotImplementedError("masked_ffn has no second derivative")
        x, w1, w2, w3, u1, u2, u3, gates, hidden = ctx.saved_tensors
        plan, (of_x, *of_weights, _) = ctx.plan, ctx.needs_input_grad
        grads = dict.fromkeys(("x", "w1", "w2", "w3", "u1", "u2", "u3"))
        d_gates = down_gradient(g, w2, u2, gates, plan)
        if of_x:
            grads["x"] = product(d_gates, [w1, w3], [u1, u3], plan, transposed=False, a_sorted=True)
        if any(of_weights):
            d_down = weight_gradients(g, (hidden, None), plan)
            grads["w2"], grads["u2"] = d_down[..., : len(w1)]
            x_rows = grouped.pack(plan, x)
            d_visual, d_textual = weight_gradients(d_gates, x_rows, plan, g_sorted=True)
            grads["w1"], grads["w3"] = (each[: len(w1)] for each in d_visual.chunk(2))
            grads["u1"], grads["u3"] = (each[: len(u1)] for each in d_textual.chunk(2))
        return *grads.values(), None


def masked_ffn(
    x: torch.Tensor,
    w1: torch.Tensor,
    w2: torch.Tensor,
    w3: torch.Tensor,
    u1: torch.Tensor,
    u2: torch.Tensor,
    u3: torch.Tensor,
    mask: torch.Tensor,
) -> torch.Tensor:
    """Return w2(silu(w1 x) * w3 x) for the tokens of the mask; the others take u1, u2 and u3.

    x: [tokens, width]; w1, w3, u1, u3: [inner, width]; w2, u2: [width, inner]; mask: bool [tokens].
    Returns x's shape and dtype. Other shapes and dtypes are a ValueError.
    """
    up_shape, down_shape = (len(w1), *x.shape[1:]), (*x.shape[1:], len(w1))
    weights = {"w1": (w1, up_shape), "w2": (w2, down_shape), "w3": (w3, up_shape)}
    weights |= {"u1": (u1, up_shape), "u2": (u2, down_shape), "u3": (u3, up_shape)}
    check(x, mask, **weights)
    return _MaskedFFN.apply(x, w1, w2, w3, u1, u2, u3, mask)
