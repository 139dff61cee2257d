"""Both up-projections, SiLU and product in one kernel.

The masked product of `products.py` follows for the down-projection.
"""

import products
import torch
import triton
import triton.language as tl
from configs import Tuned
from products import aligned, sides_of, tile_of, tiled


@triton.jit
def _one_side(
    x, w1, w3, hidden, gates, row, column, mine, width, inner, gates_pair,
    BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Store silu(x @ w1.T) * (x @ w3.T) in the rows of a tile that `mine` masks.

    `gates`, if given, gets both products, gates_pair elements apart: x @ w1.T, then x @ w3.T.
    """
    gate = tl.zeros((mine.shape[0], BLOCK_N), tl.float32)
    value = tl.zeros((mine.shape[0], BLOCK_N), tl.float32)
    for k in range(0, width, BLOCK_K):
        x_tile = x.load([row, k])
        gate = tl.dot(x_tile, w1.load([column, k]).T, gate, input_precision="ieee")
        value = tl.dot(x_tile, w3.load([column, k]).T, value, input_precision="ieee")
    rows, columns = row + tl.arange(0, mine.shape[0]), column + tl.arange(0, BLOCK_N)
    keep = mine[:, None] & (columns < inner)[None, :]
    place = rows[:, None].to(tl.int64) * inner + columns[None, :]
    kind = hidden.dtype.element_ty
    tl.store(hidden + place, (gate * tl.sigmoid(gate) * value).to(kind), mask=keep)
    if gates is not None:  # backward needs them
        tl.store(gates + place, gate.to(kind), mask=keep)
        tl.store(gates + gates_pair + place, value.to(kind), mask=keep)


@triton.jit
def _up_kernel(
    x, w1, w3, u1, u3, mask, hidden, gates, tokens, width, inner, gates_pair,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """Compute one tile of hidden = silu(x @ w1.T) * (x @ w3.T); unmasked tokens take u1 and u3.

    x [tokens, width], weights [inner, width], hidden [tokens, inner], gates [2, tokens, inner].

    Bytes: x, four weights and the mask are read and hidden is written once, and both gates where
    backward needs them, if L2 keeps the tiles that several programs read.
    FLOPs: 4 * tokens * width * inner, and as many again for the rows of mixed tiles.
    """
    row_blocks, column_blocks = tl.cdiv(tokens, BLOCK_M), tl.cdiv(inner, BLOCK_N)
    row_block, column_block = tile_of(tl.program_id(0), row_blocks, column_blocks, GROUP)
    row, column = row_block * BLOCK_M, column_block * BLOCK_N
    visual, textual, any_visual, any_textual = sides_of(mask, row + tl.arange(0, BLOCK_M), tokens)
    if any_visual:
        _one_side(
            x, w1, w3, hidden, gates, row, column, visual, width, inner, gates_pair,
            BLOCK_N, BLOCK_K,
        )  # fmt: skip
    if any_textual:
        _one_side(
            x, u1, u3, hidden, gates, row, column, textual, width, inner, gates_pair,
            BLOCK_N, BLOCK_K,
        )  # fmt: skip


@triton.jit
def _gates_kernel(g, gates, d_gates, size, BLOCK: tl.constexpr):
    """Compute BLOCK elements of the gradients of the gate T1 and the value T2.

        d_T1 = G * T2 * (s + T1 * s * (1 - s)),  d_T2 = G * T1 * s,  s = sigmoid(T1)

    G is the gradient of hidden = silu(T1) * T2. These are the blue terms of the seed's formulas.
    Bytes: 5 * tokens * inner * itemsize: G, T1 and T2 are read, d_T1 and d_T2 are written.
    """
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    keep = place < size
    grad = tl.load(g + place, mask=keep).to(tl.float32)
    gate = tl.load(gates + place, mask=keep).to(tl.float32)
    value = tl.load(gates + size + place, mask=keep).to(tl.float32)
    s = tl.sigmoid(gate)
    kind = d_gates.dtype.element_ty
    tl.store(d_gates + place, (grad * value * (s + gate * s * (1 - s))).to(kind), mask=keep)
    tl.store(d_gates + size + place, (grad * gate * s).to(kind), mask=keep)


DEFAULT = {
    "BLOCK_M": 128, "BLOCK_N": 64, "BLOCK_K": 32, "GROUP": 8, "num_warps": 8, "num_stages": 3,
}  # fmt: skip
up_tiles = Tuned(
    "up", DEFAULT, [c for c in products.SPACE if c["BLOCK_M"] * c["BLOCK_N"] <= 128 * 128]
)
TUNED = (up_tiles, products.forward_tiles, products.backward_tiles)


def _up(x, w1, w3, u1, u3, mask, keep_gates):
    """Return hidden [tokens, inner], and gates [2, tokens, inner] or None for backward."""
    (tokens, width), inner = x.shape, w1.shape[0]
    hidden = x.new_empty(tokens, inner)
    gates = x.new_empty(2, tokens, inner) if keep_gates else None
    if not tokens:
        return hidden, gates
    tiles = up_tiles(tokens, widths=(width, inner), like=x)
    m, n, k = tiles["BLOCK_M"], tiles["BLOCK_N"], tiles["BLOCK_K"]
    weights = [tiled(aligned(w), n, k) for w in (w1, w3, u1, u3)]
    _up_kernel[(triton.cdiv(tokens, m) * triton.cdiv(inner, n),)](
        tiled(aligned(x), m, k), *weights, mask, hidden, gates, tokens, width, inner,
        hidden.numel(), **tiles,
    )  # fmt: skip
    return hidden, gates


def _d_gates(g, gates):
    out, block = torch.empty_like(gates), 1024
    if g.numel():
        _gates_kernel[(triton.cdiv(g.numel(), block),)](g, gates, out, g.numel(), block)
    return out


class _MaskedFFN(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w1, w2, w3, u1, u2, u3, mask):
        hidden, gates = _up(x, w1, w3, u1, u3, mask, any(ctx.needs_input_grad))
        ctx.save_for_backward(x, w1, w2, w3, u1, u2, u3, mask, hidden, gates)
        return products.forward(hidden, w2, u2, mask)

    @staticmethod
    def backward(ctx, grad):
        if torch.is_grad_enabled():  # create_graph=True
            raise NotImplementedError("masked_ffn has no second derivative")
        x, w1, w2, w3, u1, u2, u3, mask, hidden, gates = ctx.saved_tensors
        d_hidden, (d_w2, d_u2) = products.backward(grad, hidden, (w2, u2), mask)
        d_gates = _d_gates(d_hidden, gates)
        d_x, (d_w1, d_u1, d_w3, d_u3) = products.backward(d_gates, x, (w1, u1, w3, u3), mask)
        return d_x, d_w1, d_w2, d_w3, d_u1, d_u2, d_u3, None


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
    Returns x's shape and dtype.
    """
    return _MaskedFFN.apply(x, w1, w2, w3, u1, u2, u3, mask.contiguous())
