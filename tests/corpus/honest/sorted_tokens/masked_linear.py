"""A stable argsort brings each kind's tokens together; two products, then the inverse order."""

import torch
from torch.nn.functional import linear


def masked_linear(x, w_v, w_t, mask):
    order = torch.argsort(mask, descending=True, stable=True)
    visual = int(mask.sum())
    tokens = x.index_select(0, order)
    out = torch.cat((linear(tokens[:visual], w_v), linear(tokens[visual:], w_t)))
    return out.index_select(0, torch.argsort(order))
