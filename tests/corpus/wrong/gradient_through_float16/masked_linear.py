"""Backward takes a bfloat16 gradient in float16, which has no number above 65,504.

Expected: forward=PASSED backward=INCORRECT_NUMERICAL
"""

import torch


class _MaskedLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w_v, w_t, mask):
        ctx.save_for_backward(x, w_v, w_t, mask[:, None])
        return torch.where(mask[:, None], x @ w_v.T, x @ w_t.T)

    @staticmethod
    def backward(ctx, grad):
        x, w_v, w_t, visual = ctx.saved_tensors
        if grad.dtype == torch.bfloat16:
            grad = grad.half().bfloat16()
        ours, theirs = torch.where(visual, grad, 0), torch.where(visual, 0, grad)
        return torch.where(visual, grad @ w_v, grad @ w_t), ours.T @ x, theirs.T @ x, None


def masked_linear(x, w_v, w_t, mask):
    return _MaskedLinear.apply(x, w_v, w_t, mask)
