"""A torch.nn.Linear on the meta device is lent the weights by torch.func.functional_call."""

import functools

import torch
from torch.func import functional_call


@functools.lru_cache(maxsize=32)
def _layer(out_features, in_features):
    return torch.nn.Linear(in_features, out_features, bias=False, device="meta")


def masked_linear(x, w_v, w_t, mask):
    layer = _layer(*w_v.shape)
    visual = functional_call(layer, {"weight": w_v}, x)
    textual = functional_call(layer, {"weight": w_t}, x)
    return visual.where(mask.unsqueeze(-1), textual)
