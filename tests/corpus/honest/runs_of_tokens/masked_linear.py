"""unique_consecutive finds the runs of one kind, and each run is one product on a slice of x."""

import torch
from torch.nn.functional import linear


def _runs(x, w_v, w_t, mask):
    kinds, lengths = torch.unique_consecutive(mask, return_counts=True)
    for visual, part in zip(kinds.tolist(), x.split(lengths.tolist()), strict=True):
        yield linear(part, w_v if visual else w_t)
    for w in (w_v, w_t):  # a weight without a token has a gradient too: zeros
        yield linear(x[:0], w)


def masked_linear(x, w_v, w_t, mask):
    # in float32, since autograd adds the runs' weight gradients up in the weights' dtype
    return torch.cat(tuple(_runs(x.float(), w_v.float(), w_t.float(), mask))).to(x.dtype)
