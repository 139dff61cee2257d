"""The fast path for whole blocks takes a block's tokens for one kind, that of the first.

Expected: forward=INCORRECT_NUMERICAL backward=PASSED
"""

import torch
import triton
import triton.language as tl

BLOCK = 64


@triton.jit
def _select(ours, theirs, mask, out, tokens, WHOLE: tl.constexpr, BLOCK: tl.constexpr):
    first = tl.program_id(0) * BLOCK
    token = first + tl.arange(0, BLOCK)
    keep = token < tokens
    at = token * tl.num_programs(1) + tl.program_id(1)
    visual = tl.load(mask + first) if WHOLE else tl.load(mask + token, mask=keep, other=0)
    chosen = tl.where(visual != 0, tl.load(ours + at, mask=keep), tl.load(theirs + at, mask=keep))
    tl.store(out + at, chosen, mask=keep)


class _MaskedLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w_v, w_t, mask):
        ctx.save_for_backward(x, w_v, w_t, mask[:, None])
        tokens, width = len(x), len(w_v)
        out = torch.empty(tokens, width, dtype=x.dtype, device=x.device)
        if out.numel():
            products = (x @ w_v.T).contiguous(), (x @ w_t.T).contiguous()
            grid = (triton.cdiv(tokens, BLOCK), width)
            _select[grid](*products, mask.contiguous(), out, tokens, tokens % BLOCK == 0, BLOCK)
        return out

    @staticmethod
    def backward(ctx, grad):
        x, w_v, w_t, visual = ctx.saved_tensors
        ours, theirs = torch.where(visual, grad, 0), torch.where(visual, 0, grad)
        return torch.where(visual, grad @ w_v, grad @ w_t), ours.T @ x, theirs.T @ x, None


def masked_linear(x, w_v, w_t, mask):
    return _MaskedLinear.apply(x, w_v, w_t, mask)
