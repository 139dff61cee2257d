"""Backward divides each row of the gradient by its largest element, which may be zero.

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
        x, w_v, w_t, visual = (saved.float() for saved in ctx.saved_tensors)
        largest = grad.float().abs().amax(1, keepdim=True)
        grad = grad.float() / largest
        above = largest * torch.where(visual.bool(), grad @ w_v, grad @ w_t)
        ours, theirs = (grad * visual).T @ (largest * x), (grad * (1 - visual)).T @ (largest * x)
        return *(each.to(ctx.saved_tensors[0].dtype) for each in (above, ours, theirs)), None


def masked_linear(x, w_v, w_t, mask):
    return _MaskedLinear.apply(x, w_v, w_t, mask)
