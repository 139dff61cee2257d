"""Where a weight is frozen, backward returns None for every input, x too.

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
        x, w_v, w_t, mask = ctx.saved_tensors
        if not all(ctx.needs_input_grad[1:3]):
            return None, None, None, None
        d_x = torch.where(mask, grad @ w_v, grad @ w_t)
        return d_x, (grad * mask).T @ x, (grad * ~mask).T @ x, None


def masked_linear(x, w_v, w_t, mask):
    return _MaskedLinear.apply(x, w_v, w_t, mask)
