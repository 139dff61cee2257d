"""Step 2: a tile takes the product of a kind that it has: one for whole spans, two where mixed."""

# The idea: a tile of 128 tokens looks at its mask first, and takes no product for a kind that it
# has no token of. FLOPs: in products, half of step 1's where the mask is made of spans. A random
# mask mixes kinds in all tiles: both products, one after the other, which read x twice.

import torch
import triton
import triton.language as tl
from masked import blocks_for, check, load_tile, store_tile


@triton.jit
def _product_kernel(
    x,  # [tokens, inputs]
    w_v,  # [outputs, inputs]
    w_t,  # [outputs, inputs]
    mask,  # bool [tokens], contiguous
    out,  # [tokens, outputs], contiguous
    sizes,  # (tokens, inputs, outputs)
    x_strides,  # (token, input), elements
    w_strides,  # (output, input), elements, of both weights
    BLOCK: tl.constexpr,  # tokens, and outputs, of a tile
    DEPTH: tl.constexpr,  # inputs of a step
):
    """Compute a tile of out[token] = x[token] @ (mask[token] ? w_v : w_t).T."""
    tokens, inputs, outputs = sizes
    token = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    output = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    textual = tl.load(mask + token, token < tokens, 0) == 0
    for kind in tl.static_range(2):
        mine = (token < tokens) & (textual if kind else ~textual)
        w = w_t if kind else w_v
        if tl.max(mine.to(tl.int32)):
            acc = tl.zeros((BLOCK, BLOCK), tl.float32)
            for start in range(0, inputs, DEPTH):
                depth = start + tl.arange(0, DEPTH)
                x_tile = load_tile(x, token, depth, (tokens, inputs), x_strides)
                w_tile = load_tile(w, output, depth, (outputs, inputs), w_strides)
                # "ieee", since float32 would otherwise be rounded to tf32, ten bits
                acc = tl.dot(x_tile, w_tile.T, acc, input_precision="ieee")
            # the other kind counts as outside
            store_tile(out, tl.where(mine, token, tokens), output, (tokens, outputs), acc)


@triton.jit
def _sums_kernel(
    g,  # [tokens, outputs], the output's gradient
    x,  # [tokens, inputs]
    mask,  # bool [tokens], contiguous
    d_w,  # [2, outputs, inputs], contiguous: the visual weight's gradient, the textual one's
    sizes,  # (tokens, inputs, outputs)
    g_strides,  # (token, output), elements
    x_strides,  # (token, input), elements
    BLOCK: tl.constexpr,  # outputs, and inputs, of a tile
    DEPTH: tl.constexpr,  # tokens of a step
):
    """Sum a tile of the products g[token] x[token] over the tokens of a kind, in their order."""
    tokens, inputs, outputs = sizes
    output = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    kind = tl.program_id(2)
    acc = tl.zeros((BLOCK, BLOCK), tl.float32)
    for start in range(0, tokens, DEPTH):
        token = start + tl.arange(0, DEPTH)
        textual = tl.load(mask + token, token < tokens, 0) == 0
        # the other kind counts as outside, so as zero: each sum takes the time of all tokens
        token = tl.where(textual == (kind == 1), token, tokens)
        g_tile = load_tile(g, token, output, (tokens, outputs), g_strides)
        x_tile = load_tile(x, token, column, (tokens, inputs), x_strides)
        acc = tl.dot(g_tile.T, x_tile, acc, input_precision="ieee")
    store_tile(d_w + kind.to(tl.int64) * outputs * inputs, output, column, (outputs, inputs), acc)


def _product(x, w_v, w_t, mask):
    (tokens, inputs), outputs, blocks = x.shape, len(w_v), blocks_for(x)
    out = x.new_empty(tokens, outputs)
    grid = triton.cdiv(tokens, blocks["BLOCK"]), triton.cdiv(outputs, blocks["BLOCK"])
    if tokens:
        sizes, strides = (tokens, inputs, outputs), (x.stride(), w_v.stride())
        _product_kernel[grid](x, w_v, w_t, mask, out, sizes, *strides, **blocks)
    return out


class _MaskedLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w_v, w_t, mask):
        w_v, w_t = w_v.contiguous(), w_t.contiguous()
        mask = mask.contiguous()
        ctx.save_for_backward(x, w_v, w_t, mask)
        return _product(x, w_v, w_t, mask)

    @staticmethod
    def backward(ctx, g):
        # gradients are on under create_graph=True, and a second one would be wrong without a word
        if torch.is_grad_enabled():
            raise NotImplementedError("masked_linear has no second derivative")
        x, w_v, w_t, mask = ctx.saved_tensors
        d_w, blocks = x.new_empty(2, *w_v.shape), blocks_for(x)
        grid = *(triton.cdiv(each, blocks["BLOCK"]) for each in w_v.shape), 2
        sizes = *x.shape, len(w_v)
        _sums_kernel[grid](g, x, mask, d_w, sizes, g.stride(), x.stride(), **blocks)
        return _product(g, w_v.T, w_t.T, mask), *d_w, None


def masked_linear(x, w_v, w_t, mask):
    """Return x @ w_v.T for the tokens of the mask, x @ w_t.T for the others: [tokens, out].

    x: [tokens, in]; w_v, w_t: [out, in], of x's dtype; mask: bool [tokens]. Otherwise ValueError.
    """
    check(x, w_v, w_t, mask)
    return _MaskedLinear.apply(x, w_v, w_t, mask)
