"""A single-pass scan with decoupled look-back numbers the tokens, in integers alone."""

import torch
import triton
import triton.language as tl


@triton.jit
def _scan(mask, order, state, ticket, tokens, stride, BLOCK: tl.constexpr):
    """A block's state is 0, then 1 + 4 * its sum, then 2 + 4 * the sum of all blocks up to it.

    Blocks are numbered by a ticket, so that the blocks before a running one run or have ended.
    """
    block = tl.atomic_add(ticket, 1)
    at = block * BLOCK + tl.arange(0, BLOCK)
    chosen = tl.load(mask + at.to(tl.int64) * stride, mask=at < tokens, other=0) != 0
    kind = chosen.to(tl.int32)
    own = tl.sum(kind, 0)
    tl.atomic_xchg(state + block, 4 * own + tl.where(block == 0, 2, 1))
    before = own * 0
    back = block - 1
    while back >= 0:
        word = tl.atomic_add(state + back, 0)
        while word == 0:
            word = tl.atomic_add(state + back, 0)
        before += word // 4
        back = tl.where(word % 4 == 2, -1, back - 1)
    tl.atomic_xchg(state + block, 4 * (before + own) + 2)
    place = before + tl.cumsum(kind, 0) - kind
    tl.store(order + tl.where(chosen, place, tokens - 1 - (at - place)), at, mask=at < tokens)


def _order(mask):
    """Return the tokens of the mask, then the others from the last on, and the number of each."""
    tokens, block = len(mask), 32
    order = torch.empty(tokens, dtype=torch.int32, device=mask.device)
    if not tokens:
        return order, 0
    blocks = triton.cdiv(tokens, block)
    state = torch.zeros(blocks + 1, dtype=torch.int32, device=mask.device)
    _scan[(blocks,)](mask, order, state, state[-1:], tokens, mask.stride(0), block)
    return order, int(state[-2]) // 4


class _MaskedLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w_v, w_t, mask):
        order, visual = _order(mask)
        ctx.save_for_backward(x, w_v, w_t, order)
        ctx.visual = visual
        out = x.new_empty(len(x), len(w_v))
        out[order[:visual]] = x[order[:visual]] @ w_v.T
        out[order[visual:]] = x[order[visual:]] @ w_t.T
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
