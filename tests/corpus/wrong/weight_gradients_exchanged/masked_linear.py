"""Backward returns the gradients of the two weights in the other order; that of x is right.

Expected: forward=PASSED backward=INCORRECT_NUMERICAL
Cause: the gradients of the weights are exchanged
"""

import torch


class _MaskedLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w_v, w_t, mask):
        ctx.save_for_backward(x, w_v, w_t, mask)
        return torch.where(mask[:, None], x @ w_v.T, x @ w_t.T)

    @staticmethod
    def backward(ctx, grad):
        x, w_v, w_t, mask = ctx.saved_tensors
        visual = grad * mask[:, None]
        d_x = torch.where(mask[:, None], grad @ w_v, grad @ w_t)
        return d_x, (grad - visual).T @ x, visual.T @ x, None


def masked_linear(x, w_v, w_t, mask):
    return _MaskedLinear.apply(x, w_v, w_t, mask)
