"""Forward keeps the mask on its class, not on ctx: backward takes that of the latest forward.

Expected: forward=PASSED backward=INCORRECT_NUMERICAL
"""

import torch


class _MaskedLinear(torch.autograd.Function):
    mask: torch.Tensor

    @staticmethod
    def forward(ctx, x, w_v, w_t, mask):
        ctx.save_for_backward(x, w_v, w_t)
        _MaskedLinear.mask = mask.clone()[:, None]
        return torch.where(mask[:, None], x @ w_v.T, x @ w_t.T)

    @staticmethod
    def backward(ctx, grad):
        x, w_v, w_t = ctx.saved_tensors
        mask = _MaskedLinear.mask
        d_x = torch.where(mask, grad @ w_v, grad @ w_t)
        return d_x, (grad * mask).T @ x, (grad * ~mask).T @ x, None


def masked_linear(x, w_v, w_t, mask):
    return _MaskedLinear.apply(x, w_v, w_t, mask)
