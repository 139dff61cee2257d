"""The order of tokens is kept by the mask's address and version, while the mask is held."""

import torch

orders = {}


def _order(mask):
    if mask.is_inference():
        return mask.int().argsort(stable=True), int(mask.logical_not().sum())
    key = (mask.data_ptr(), mask._version, mask.shape, mask.stride())
    if key not in orders:
        if len(orders) > 3:
            orders.clear()
        # a view is enough: its memory is not given to another tensor
        orders[key] = mask.int().argsort(stable=True), int(mask.logical_not().sum()), mask.detach()
    return orders[key][:2]


def masked_linear(x, w_v, w_t, mask):
    order, textual = _order(mask)
    x = x[order]
    y = torch.cat((x[:textual] @ w_t.T, x[textual:] @ w_v.T))
    return torch.empty_like(y).index_copy(0, order, y)
