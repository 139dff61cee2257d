"""Forward keeps the mask under x's address, and backward pops it: gone when x is used twice.

Expected: forward=PASSED backward=RUNTIME_ERROR
"""

import torch

masks = {}


class _MaskedLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w_v, w_t, mask):
        masks[x.data_ptr()] = mask[:, None]
        ctx.save_for_backward(x, w_v, w_t)
        return torch.where(mask[:, None], x @ w_v.T, x @ w_t.T)

    @staticmethod
    def backward(ctx, grad):
        x, w_v, w_t = ctx.saved_tensors
        mask = masks.pop(x.data_ptr())
        d_x = torch.where(mask, grad @ w_v, grad @ w_t)
        return d_x, (grad * mask).T @ x, (grad * ~mask).T @ x, None


def masked_linear(x, w_v, w_t, mask):
    return _MaskedLinear.apply(x, w_v, w_t, mask)
