"""Naive on purpose: three masked linear layers, SiLU between."""

# In plain torch, for x [tokens, width] and a mask [tokens]:
#
#     visual = (silu(x @ w1.T) * (x @ w3.T)) @ w2.T
#     textual = (silu(x @ u1.T) * (x @ u3.T)) @ u2.T
#     out = torch.where(mask[:, None], visual, textual)
#
# These are three layers of two weights each; the mask chooses one of the two for each token:
#
#     out = torch.where(mask[:, None], x @ w_v.T, x @ w_t.T)

import torch
import triton
import triton.language as tl


# 1. The kernel. Triton starts many copies of it, called programs; `program_id` numbers them.
#    Here a program computes one tile of the output: BLOCK tokens times BLOCK features.
@triton.jit
def _kernel(
    x, w_v, w_t, mask, out, tokens, inputs, outputs, w_row, w_column, BLOCK: tl.constexpr
):  # fmt: skip
    """Compute one tile of out[token] = x[token] @ (mask[token] ? w_v : w_t).T.

    Bytes: x, the weights and the mask are read and out is written once, if the caches keep the
    tiles that several programs read. FLOPs: 4 * tokens * inputs * outputs, since each tile takes
    two products where one would do; improve this.
    """
    rows = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    # Sums in float32 for every dtype: the only rounding is the store's.
    visual = tl.zeros((BLOCK, BLOCK), tl.float32)
    textual = tl.zeros((BLOCK, BLOCK), tl.float32)
    # Each step takes a tile [BLOCK, BLOCK] of x and one of each weight, along the inner dimension.
    # `there` switches off the lanes that would leave a tensor; they count as zero.
    for start in range(0, inputs, BLOCK):
        k = start + tl.arange(0, BLOCK)
        there = (rows < tokens)[:, None] & (k < inputs)[None, :]
        # in 64 bits, because rows * inputs may not fit in 32
        x_tile = tl.load(x + rows[:, None].to(tl.int64) * inputs + k[None, :], there, 0.0)
        # strides instead of a transposed copy: w[column, k] read as a tile [k, column]
        place = k[:, None] * w_column + columns[None, :].to(tl.int64) * w_row
        there = (k < inputs)[:, None] & (columns < outputs)[None, :]
        # "ieee", because tl.dot would otherwise round float32 to tf32, ten bits
        visual = tl.dot(x_tile, tl.load(w_v + place, there, 0.0), visual, input_precision="ieee")
        textual = tl.dot(x_tile, tl.load(w_t + place, there, 0.0), textual, input_precision="ieee")
    chosen = tl.load(mask + rows, rows < tokens, 0)
    result = tl.where((chosen != 0)[:, None], visual, textual)
    there = (rows < tokens)[:, None] & (columns < outputs)[None, :]
    tl.store(out + rows[:, None].to(tl.int64) * outputs + columns[None, :], result, there)


# 2. The launcher allocates the output, and chooses the number of programs and the tile's size. A
#    kernel trusts its pointers and sizes: with a mask shorter than x it would read other memory. So
#    the launcher refuses what does not fit.
def _launch(x, w_v, w_t, mask):
    if mask.dtype != torch.bool or mask.shape != x.shape[:1]:
        raise ValueError(f"mask {list(mask.shape)} of {mask.dtype} is not bool [{len(x)}]")
    for w in (w_v, w_t):
        if w.shape != w_v.shape or w.shape[1:] != x.shape[1:] or w.dtype != x.dtype:
            raise ValueError(f"weight {list(w.shape)} of {w.dtype} does not fit x {list(x.shape)}")
    x = x.contiguous()
    if w_v.stride() != w_t.stride():  # the kernel takes one stride for both
        w_v, w_t = w_v.contiguous(), w_t.contiguous()
    (tokens, inputs), outputs = x.shape, w_v.shape[0]
    out = torch.empty(tokens, outputs, dtype=x.dtype, device=x.device)
    if tokens:  # no tokens, no programs
        grid = (triton.cdiv(tokens, 32), triton.cdiv(outputs, 32))
        _kernel[grid](x, w_v, w_t, mask, out, tokens, inputs, outputs, *w_v.stride(), 32)
    return out


# 3. Autograd: forward saves the tensors that backward needs on `ctx`. Backward returns a gradient
#    or None for each argument of forward.
class _MaskedLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w_v, w_t, mask):
        ctx.save_for_backward(x, w_v, w_t, mask)
        return _launch(x, w_v, w_t, mask)

    @staticmethod
    def backward(ctx, grad):
        # With create_graph=True gradients are on in here, and autograd would take what the kernel
        # computes for constants: a second derivative would be wrong without a word.
        if torch.is_grad_enabled():
            raise NotImplementedError("masked_ffn has no second derivative")
        x, w_v, w_t, mask = ctx.saved_tensors
        # The gradient of x goes back through the same weights, so the same kernel computes it. A
        # weight's gradient sums over that weight's tokens, here in plain torch; replace it.
        d_x = _launch(grad, w_v.T, w_t.T, mask)
        visual = grad * mask[:, None]
        return d_x, visual.T @ x, (grad - visual).T @ x, None


# 4. The function that the harness calls, named after the op. Autograd joins the three layers and
#    the operations between them. Each operation reads and writes whole tensors: fuse them.
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
    mask = mask.contiguous()
    gate = _MaskedLinear.apply(x, w1, u1, mask)
    value = _MaskedLinear.apply(x, w3, u3, mask)
    return _MaskedLinear.apply(torch.nn.functional.silu(gate) * value, w2, u2, mask)
