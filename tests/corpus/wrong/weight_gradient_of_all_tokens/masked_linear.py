"""The gradient of the visual weight sums over the textual tokens too.

Expected: forward=PASSED backward=INCORRECT_NUMERICAL
Cause: the gradient of w_v sums over all tokens
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
        d_x = torch.where(mask[:, None], grad @ w_v, grad @ w_t)
        return d_x, grad.T @ x, (grad * ~mask[:, None]).T @ x, None


def masked_linear(x, w_v, w_t, mask):
    return _MaskedLinear.apply(x, w_v, w_t, mask)
