"""A stride of 0 in the mask, one kind for all tokens, is taken for a stride of 1.

Expected: forward=OUT_OF_BOUNDS backward=OUT_OF_BOUNDS
On a GPU: INCORRECT_NUMERICAL
"""

import torch
import triton
import triton.language as tl


@triton.jit
def _kinds(mask, out, stride, tokens, BLOCK: tl.constexpr):
    token = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    keep = token < tokens
    tl.store(out + token, tl.load(mask + token * stride, mask=keep), mask=keep)


class _MaskedLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w_v, w_t, mask):
        ctx.save_for_backward(x, w_v, w_t, mask[:, None])
        kinds = torch.empty(len(x), dtype=torch.bool, device=x.device)
        if len(x):
            stride = max(mask.stride(0), 1)
            _kinds[(triton.cdiv(len(x), 64),)](mask, kinds, stride, len(x), 64)
        return torch.where(kinds[:, None], x @ w_v.T, x @ w_t.T)

    @staticmethod
    def backward(ctx, grad):
        x, w_v, w_t, visual = ctx.saved_tensors
        ours, theirs = torch.where(visual, grad, 0), torch.where(visual, 0, grad)
        return torch.where(visual, grad @ w_v, grad @ w_t), ours.T @ x, theirs.T @ x, None


def masked_linear(x, w_v, w_t, mask):
    return _MaskedLinear.apply(x, w_v, w_t, mask)
