"""Products of slices of K are added by Kahan's compensated sum, in float32."""

import torch

SLICE = 256


def _product(a, b):
    """a @ b in a's dtype"""
    total = torch.zeros(len(a), b.shape[1], dtype=torch.float32, device=a.device)
    lost = torch.zeros_like(total)
    for first in range(0, a.shape[1], SLICE):
        part = a[:, first : first + SLICE].float() @ b[first : first + SLICE].float() - lost
        new = total + part
        lost = (new - total) - part
        total = new
    return total.to(a.dtype)


class _MaskedLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w_v, w_t, mask):
        ctx.save_for_backward(x, w_v, w_t, mask)
        out = x.new_empty(len(x), len(w_v))
        for chosen, w in ((mask, w_v), (~mask, w_t)):
            out[chosen] = _product(x[chosen], w.T)
        return out

    @staticmethod
    def backward(ctx, grad):
        x, w_v, w_t, mask = ctx.saved_tensors
        d_x, d_w = x.new_empty(x.shape), []
        for chosen, w in ((mask, w_v), (~mask, w_t)):
            d_x[chosen] = _product(grad[chosen], w)
            d_w.append(_product(grad[chosen].T, x[chosen]))
        return d_x, *d_w, None


def masked_linear(x, w_v, w_t, mask):
    return _MaskedLinear.apply(x, w_v, w_t, mask)
