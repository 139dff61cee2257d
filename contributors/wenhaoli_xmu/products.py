"""Products whose weight the mask chooses for each token, and their gradients, for both layers."""

import torch
import triton
import triton.language as tl
from configs import Tuned
from triton.tools.tensor_descriptor import TensorDescriptor

# --- on the device --------------------------------------------------------------------------------


@triton.jit
def tile_of(program, row_blocks, column_blocks, GROUP: tl.constexpr):
    """Return a program's tile as its row and column, in groups of GROUP rows of tiles.

    Neighbouring programs then read the same tiles, which L2 holds. The last group may be shorter:
    dividing by GROUP there would leave some tiles without a program.
    """
    group = program // (GROUP * column_blocks)
    height = tl.minimum(row_blocks - group * GROUP, GROUP)
    inside = program % (GROUP * column_blocks)
    return group * GROUP + inside % height, inside // height


@triton.jit
def sides_of(mask, rows, tokens):
    """Return masks of a tile's visual and textual rows, and whether there are any of each."""
    real = rows < tokens
    visual = tl.load(mask + rows, mask=real, other=0).to(tl.int1)
    textual = real & (visual == 0)
    return visual, textual, tl.max(visual.to(tl.int32)), tl.max(textual.to(tl.int32))


@triton.jit
def _one_side(
    x, w, w2, out, row, column, mine, tokens, size, width,
    BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, TURNED: tl.constexpr,
):  # fmt: skip
    """Store x @ w, or x @ w + x[tokens:] @ w2 if w2 is given, in the rows that `mine` masks.

    w is [size, width]; TURNED, it lies in memory as its transpose. Elements outside of a
    descriptor's tensor read as zero, so no tail needs a mask.
    """
    rows, columns = row + tl.arange(0, mine.shape[0]), column + tl.arange(0, BLOCK_N)
    acc = tl.zeros((mine.shape[0], BLOCK_N), tl.float32)
    for k in range(0, size, BLOCK_K):
        w_tile = w.load([column, k]).T if TURNED else w.load([k, column])
        acc = tl.dot(x.load([row, k]), w_tile, acc, input_precision="ieee")
    if w2 is not None:
        for k in range(0, size, BLOCK_K):
            w_tile = w2.load([column, k]).T if TURNED else w2.load([k, column])
            acc = tl.dot(x.load([tokens + row, k]), w_tile, acc, input_precision="ieee")
    out += rows[:, None].to(tl.int64) * width + columns[None, :]
    tl.store(out, acc.to(out.dtype.element_ty), mask=mine[:, None] & (columns < width)[None, :])


@triton.jit
def _masked_tile(
    program, x, w_v, w_t, w2_v, w2_t, mask, out, tokens, size, width,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr,
    TURNED: tl.constexpr,
):  # fmt: skip
    """Compute one tile of out[token] = x[token] @ (mask[token] ? w_v : w_t), [tokens, width].

    The weights are [size, width]; TURNED, they lie in memory as their transposes. A tile whose mask
    is uniform takes one product. A mixed tile takes both, one after the other, and each product
    stores the rows of its own tokens. So there is one accumulator, and no branch inside a loop.
    With w2_v and w2_t, the sum gets x[tokens + token] @ (mask[token] ? w2_v : w2_t) as well.
    """
    row_blocks, column_blocks = tl.cdiv(tokens, BLOCK_M), tl.cdiv(width, BLOCK_N)
    row_block, column_block = tile_of(program, row_blocks, column_blocks, GROUP)
    row, column = row_block * BLOCK_M, column_block * BLOCK_N
    visual, textual, any_visual, any_textual = sides_of(mask, row + tl.arange(0, BLOCK_M), tokens)
    if any_visual:
        _one_side(
            x, w_v, w2_v, out, row, column, visual, tokens, size, width, BLOCK_N, BLOCK_K, TURNED
        )
    if any_textual:
        _one_side(
            x, w_t, w2_t, out, row, column, textual, tokens, size, width, BLOCK_N, BLOCK_K, TURNED
        )


@triton.jit
def _weight_tile(
    program, g, x, mask, blocks, counts, d_w, tokens, outputs, inputs,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """Compute one tile of d_w[pair, side] = g[pair].T @ x, summed over the tokens of one side.

    d_w [pairs, 2, outputs, inputs], side 0 the visual one; g [pairs, tokens, outputs]. The plan
    lists the blocks of tokens: first those of this side alone, which need no mask, then the mixed.
    """
    row_blocks, column_blocks = tl.cdiv(outputs, BLOCK_M), tl.cdiv(inputs, BLOCK_N)
    weight = program // (row_blocks * column_blocks)
    side = weight % 2
    row_block, column_block = tile_of(
        program % (row_blocks * column_blocks), row_blocks, column_blocks, GROUP
    )
    row, column, first = row_block * BLOCK_M, column_block * BLOCK_N, weight // 2 * tokens
    total = tl.cdiv(tokens, BLOCK_K)
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for index in range(tl.load(counts + side)):
        token = tl.load(blocks + side * total + index) * BLOCK_K
        g_tile, x_tile = g.load([first + token, row]), x.load([token, column])
        acc = tl.dot(g_tile.T, x_tile, acc, input_precision="ieee")
    for index in range(tl.load(counts + 2)):
        token = tl.load(blocks + 2 * total + index) * BLOCK_K
        g_tile, x_tile = g.load([first + token, row]), x.load([token, column])
        visual, textual, _, _ = sides_of(mask, token + tl.arange(0, BLOCK_K), tokens)
        mine = (side == 0) & visual | (side == 1) & textual
        g_tile = tl.where(mine[:, None], g_tile, 0.0)
        acc = tl.dot(g_tile.T, x_tile, acc, input_precision="ieee")
    rows, columns = row + tl.arange(0, BLOCK_M), column + tl.arange(0, BLOCK_N)
    d_w += weight.to(tl.int64) * outputs * inputs
    d_w += rows[:, None].to(tl.int64) * inputs + columns[None, :]
    real = (rows < outputs)[:, None] & (columns < inputs)[None, :]
    tl.store(d_w, acc.to(d_w.dtype.element_ty), mask=real)


# --- kernels --------------------------------------------------------------------------------------


@triton.jit
def _forward_kernel(
    x, w_v, w_t, mask, out, tokens, inputs, outputs,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """Compute one tile of out[token] = x[token] @ (mask[token] ? w_v : w_t).T.

    x [tokens, inputs], weights [outputs, inputs], out [tokens, outputs].

    Bytes: x, both weights and the mask are read and out is written once, if L2 keeps the tiles that
    several programs read.
    FLOPs: 2 * tokens * inputs * outputs, and the second products of mixed tiles.
    """
    _masked_tile(
        tl.program_id(0), x, w_v, w_t, None, None, mask, out, tokens, inputs, outputs,
        BLOCK_M, BLOCK_N, BLOCK_K, GROUP, True,
    )  # fmt: skip


@triton.jit
def _backward_kernel(
    g, g_turned, x, w_v, w_t, w2_v, w2_t, mask, blocks, counts, d_x, d_w,
    tokens, inputs, outputs, weight_programs,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """Compute one tile of d_x = g @ (mask ? w_v : w_t) or of d_w[side] = g.T @ x.

    d_w[side] sums over the tokens of one side. The first programs have the tiles of d_w, whose sums
    run over all tokens; the others have those of d_x. So the long ones begin first, and the short
    ones fill the gaps. `g_turned` describes g in the tiles that d_w needs.

    Bytes: g, x, the weights and the mask are read and d_x and d_w are written once, if L2 keeps the
    tiles that several programs read.
    FLOPs: 4 * tokens * inputs * outputs, and the second products of mixed tiles; twice that for two
    pairs of weights (w2_v and w2_t given), whose gradients d_x sums.
    """
    program = tl.program_id(0)
    if program < weight_programs:
        _weight_tile(
            program, g_turned, x, mask, blocks, counts, d_w, tokens, outputs, inputs,
            BLOCK_M, BLOCK_N, BLOCK_K, GROUP,
        )  # fmt: skip
    else:
        _masked_tile(
            program - weight_programs, g, w_v, w_t, w2_v, w2_t, mask, d_x, tokens, outputs, inputs,
            BLOCK_M, BLOCK_N, BLOCK_K, GROUP, False,
        )  # fmt: skip


@triton.jit
def _plan_kernel(
    mask, blocks, counts, tokens, total, BLOCK: tl.constexpr, AT_ONCE: tl.constexpr
):  # fmt: skip
    """Write one of three lists of blocks of BLOCK tokens: all visual, all textual, mixed.

    blocks [3, total] and counts [3] in int32. One program a list, since a list in order needs the
    count of all earlier entries. Bytes: 3 * tokens for the mask, 4 * (total + 3) for the lists.
    """
    kind = tl.program_id(0)
    found = 0
    for start in range(0, total, AT_ONCE):
        block = start + tl.arange(0, AT_ONCE)
        token = block[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
        visual = tl.load(mask + token, mask=token < tokens, other=0).to(tl.int32)
        visual = tl.sum(visual, axis=1)
        textual = tl.minimum(tokens - block * BLOCK, BLOCK) - visual
        its_kind = tl.where(visual == BLOCK, 0, tl.where(textual == BLOCK, 1, 2))
        listed = ((its_kind == kind) & (block < total)).to(tl.int32)
        place = kind * total + found + tl.cumsum(listed, axis=0) - listed
        tl.store(blocks + place, block, mask=listed > 0)
        found += tl.sum(listed, axis=0)
    tl.store(counts + kind, found)


# --- launchers ------------------------------------------------------------------------------------


# The configurations that `nox -s tune` tries: each size of tile and number of warps gives a thread
# 64 to 128 float32 sums; each depth and number of stages loads far enough ahead.
SPACE = [
    {
        "BLOCK_M": m, "BLOCK_N": n, "BLOCK_K": k, "GROUP": 8,
        "num_warps": warps, "num_stages": stages,
    }
    for m, n, warps in ((64, 128, 4), (64, 256, 4), (128, 128, 4), (128, 128, 8), (128, 256, 8))
    for k, stages in ((64, 3), (64, 4), (128, 2))
]  # fmt: skip
# Fits into 99 KB of shared memory, the least of today's GPUs, in float32 too.
DEFAULT = {
    "BLOCK_M": 128, "BLOCK_N": 128, "BLOCK_K": 32, "GROUP": 8, "num_warps": 8, "num_stages": 3,
}  # fmt: skip
forward_tiles = Tuned("forward", DEFAULT, SPACE)
backward_tiles = Tuned("backward", DEFAULT, SPACE)


def aligned(matrix):
    """Return the matrix, copied if a descriptor could not take it.

    A descriptor needs contiguous rows that start at multiples of 16 bytes.
    """
    unit = 16 // matrix.element_size()
    row, column = matrix.stride()
    if column == 1 and row % unit == 0 and row >= matrix.shape[1] and matrix.data_ptr() % 16 == 0:
        return matrix
    width = matrix.shape[1]
    return matrix.new_empty(matrix.shape[0], -(-width // unit) * unit)[:, :width].copy_(matrix)


def tiled(matrix, *block):
    return TensorDescriptor(matrix, matrix.shape, matrix.stride(), list(block))


def forward(x, w_v, w_t, mask):
    """Return x @ w_v.T for the tokens of the mask and x @ w_t.T for the others.

    x [tokens, inputs]; weights [outputs, inputs]; mask [tokens], contiguous.
    """
    (tokens, inputs), outputs = x.shape, w_v.shape[0]
    out = x.new_empty(tokens, outputs)
    if not tokens:
        return out
    tiles = forward_tiles(tokens, widths=(inputs, outputs), like=x)
    m, n, k = tiles["BLOCK_M"], tiles["BLOCK_N"], tiles["BLOCK_K"]
    x, w_v, w_t = (aligned(matrix) for matrix in (x, w_v, w_t))
    _forward_kernel[(triton.cdiv(tokens, m) * triton.cdiv(outputs, n),)](
        tiled(x, m, k), tiled(w_v, n, k), tiled(w_t, n, k), mask, out, tokens, inputs, outputs,
        **tiles,
    )  # fmt: skip
    return out


def backward(g, x, weights, mask):
    """Return the gradients d_x [tokens, inputs] and d_w [weights, outputs, inputs].

    Takes g [tokens, outputs] with weights (w_v, w_t), or a contiguous g [2, tokens, outputs] with
    two pairs of weights, (w_v, w_t, w2_v, w2_t), that multiplied the same x.
    """
    (tokens, inputs), outputs = x.shape, weights[0].shape[0]
    d_x = x.new_empty(tokens, inputs)
    d_w = x.new_empty(len(weights), outputs, inputs)
    if not tokens:
        return d_x, d_w.zero_()
    tiles = backward_tiles(tokens, widths=(inputs, outputs, len(weights)), like=x)
    m, n, k = tiles["BLOCK_M"], tiles["BLOCK_N"], tiles["BLOCK_K"]
    g, x = aligned(g.flatten(0, -2)), aligned(x)
    weights = [tiled(aligned(w), k, n) for w in weights]
    weight_programs = len(weights) * triton.cdiv(outputs, m) * triton.cdiv(inputs, n)
    programs = weight_programs + triton.cdiv(tokens, m) * triton.cdiv(inputs, n)
    _backward_kernel[(programs,)](
        tiled(g, m, k), tiled(g, k, m), tiled(x, k, n), *weights, *[None] * (4 - len(weights)),
        mask, *_plan(mask, k), d_x, d_w, tokens, inputs, outputs, weight_programs, **tiles,
    )  # fmt: skip
    return d_x, d_w


def _plan(mask, block):
    total = triton.cdiv(mask.shape[0], block)
    blocks = torch.empty((3, total), dtype=torch.int32, device=mask.device)
    counts = torch.empty(3, dtype=torch.int32, device=mask.device)
    at_once = min(triton.next_power_of_2(total), 8192 // block)
    _plan_kernel[(3,)](mask, blocks, counts, mask.shape[0], total, block, at_once)
    return blocks, counts
