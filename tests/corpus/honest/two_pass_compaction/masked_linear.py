"""A launch counts each block's tokens, a second one writes their indices behind those before it."""

import torch
import triton
import triton.language as tl


@triton.jit
def _count(mask, counts, tokens, stride, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    chosen = tl.load(mask + at.to(tl.int64) * stride, mask=at < tokens, other=0)
    tl.store(counts + tl.program_id(0), tl.sum((chosen != 0).to(tl.int32), 0))


@triton.jit
def _plus(a, b):
    return a + b


@triton.jit
def _place(mask, ends, order, tokens, stride, BLOCK: tl.constexpr):
    """order = the tokens of the mask, then the others, each kind in its own order"""
    block = tl.program_id(0)
    at = block * BLOCK + tl.arange(0, BLOCK)
    chosen = tl.load(mask + at.to(tl.int64) * stride, mask=at < tokens, other=0) != 0
    kind = chosen.to(tl.int32)
    before = tl.load(ends + block) - tl.sum(kind, 0) + tl.associative_scan(kind, 0, _plus) - kind
    total = tl.load(ends + tl.num_programs(0) - 1)
    tl.store(order + tl.where(chosen, before, total + at - before), at, mask=at < tokens)


def _order(mask):
    """Return the order of the tokens, and how many of the mask there are."""
    tokens, block = len(mask), 64
    order = torch.empty(tokens, dtype=torch.int32, device=mask.device)
    if not tokens:
        return order, 0
    blocks = triton.cdiv(tokens, block)
    counts = torch.empty(blocks, dtype=torch.int32, device=mask.device)
    _count[(blocks,)](mask, counts, tokens, mask.stride(0), block)
    ends = counts.cumsum(0, dtype=torch.int32)
    _place[(blocks,)](mask, ends, order, tokens, mask.stride(0), block)
    return order, int(ends[-1])


class _MaskedLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w_v, w_t, mask):
        order, visual = _order(mask)
        ctx.save_for_backward(x, w_v, w_t, order)
        ctx.visual = visual
        out = x.new_empty(len(x), len(w_v))
        for part, w in ((order[:visual], w_v), (order[visual:], w_t)):
            out[part] = x[part] @ w.T
        return out

    @staticmethod
    def backward(ctx, grad):
        x, w_v, w_t, order = ctx.saved_tensors
        d_x, d_w = x.new_empty(x.shape), []
        for part, w in ((order[: ctx.visual], w_v), (order[ctx.visual :], w_t)):
            d_x[part] = grad[part] @ w
            d_w.append(grad[part].T @ x[part])
        return d_x, *d_w, None


def masked_linear(x, w_v, w_t, mask):
    return _MaskedLinear.apply(x, w_v, w_t, mask)
