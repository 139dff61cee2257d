"""The weights' gradients are rounded to x's dtype after each block of 64 tokens.

Expected: forward=PASSED backward=INCORRECT_NUMERICAL
"""

import torch


def _product(grad, x):
    total = torch.zeros(grad.shape[1], x.shape[1], device=x.device)
    for g, part in zip(grad.split(64), x.split(64), strict=True):
        total = (total + g.float().T @ part.float()).to(x.dtype).float()
    return total.to(x.dtype)


class _MaskedLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w_v, w_t, mask):
        ctx.save_for_backward(x, w_v, w_t, mask)
        return torch.where(mask[:, None], x @ w_v.T, x @ w_t.T)

    @staticmethod
    def backward(ctx, grad):
        x, w_v, w_t, mask = ctx.saved_tensors
        d_x = torch.where(mask[:, None], grad @ w_v, grad @ w_t)
        d_v, d_t = (_product(grad * side[:, None], x) for side in (mask, ~mask))
        return d_x, d_v, d_t, None


def masked_linear(x, w_v, w_t, mask):
    return _MaskedLinear.apply(x, w_v, w_t, mask)
