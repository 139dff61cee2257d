"""The memory of each weight, [out, in], is read as [in, out]; the weights' gradients are right.

Expected: forward=INCORRECT_NUMERICAL backward=INCORRECT_NUMERICAL
Cause: both weights are read as their transposes
"""

import torch


def _as_in_by_out(weight):
    return weight.contiguous().view(weight.shape[::-1])


class _MaskedLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w_v, w_t, mask):
        ctx.save_for_backward(x, w_v, w_t, mask)
        return torch.where(mask[:, None], x @ _as_in_by_out(w_v), x @ _as_in_by_out(w_t))

    @staticmethod
    def backward(ctx, grad):
        x, w_v, w_t, mask = ctx.saved_tensors
        visual, mask = grad * mask[:, None], mask[:, None]
        d_x = torch.where(mask, grad @ _as_in_by_out(w_v).T, grad @ _as_in_by_out(w_t).T)
        return d_x, visual.T @ x, (grad - visual).T @ x, None


def masked_linear(x, w_v, w_t, mask):
    return _MaskedLinear.apply(x, w_v, w_t, mask)
