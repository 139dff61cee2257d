"""Backward needs the saved weights for every gradient, yet saves them only where x takes one.

Expected: forward=PASSED backward=RUNTIME_ERROR
"""

import torch


class _MaskedLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w_v, w_t, mask):
        weights = (w_v, w_t) if ctx.needs_input_grad[0] else ()
        ctx.save_for_backward(x, mask[:, None], *weights)
        return torch.where(mask[:, None], x @ w_v.T, x @ w_t.T)

    @staticmethod
    def backward(ctx, grad):
        x, mask, w_v, w_t = ctx.saved_tensors
        d_x = torch.where(mask, grad @ w_v, grad @ w_t)
        return d_x, (grad * mask).T @ x, (grad * ~mask).T @ x, None


def masked_linear(x, w_v, w_t, mask):
    return _MaskedLinear.apply(x, w_v, w_t, mask)
