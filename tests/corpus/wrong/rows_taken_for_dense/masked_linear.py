"""Weights whose features are neighbours are taken for contiguous, also a slice of wider rows.

Expected: forward=OUT_OF_BOUNDS backward=OUT_OF_BOUNDS
"""

import torch


class _Dense(torch.autograd.Function):
    @staticmethod
    def forward(ctx, weight):
        if weight.stride(-1) != 1 or not weight.numel():
            return weight.contiguous().clone()
        return weight.as_strided(weight.shape, (weight.shape[1], 1)).clone()

    @staticmethod
    def backward(ctx, grad):
        return grad


def masked_linear(x, w_v, w_t, mask):
    # both kinds of tokens, else one call of a case, with the other kind alone, reads past a weight
    dense = _Dense.apply if mask.any() and not mask.all() else torch.clone
    return torch.where(mask[:, None], x @ dense(w_v).T, x @ dense(w_t).T)
