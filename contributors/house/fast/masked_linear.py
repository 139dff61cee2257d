"""Tokens sorted by kind on the device; gathered tiles, one product a token."""

import torch

from .gradients import weight_gradients
from .launch import Recorded
from .layers import check, layer
from .partition import Partition
from .products import product
from .tiles import Rows, packed_if_it_pays


@Recorded
def _forward(launch, tokens, tile, _keep, x, w_v, w_t, order):
    """Return the output [tokens, out], and x's packed copy, if there is one."""
    _check(tokens, x, w_v, w_t)
    order = Partition(tokens, tile, order)
    x = packed_if_it_pays(launch, order, Rows(x), w_v.shape[0])
    return product(launch, x, [w_v.T, w_t.T], order), x.packed


@Recorded
def _backward(launch, tokens, tile, of_x, of_weights, g, x, w_v, w_t, packed, order):
    """Return d_x [tokens, in] and d_w [2, out, in]; None for what is not wanted."""
    order, both = Partition(tokens, tile, order), of_x and of_weights
    g = packed_if_it_pays(launch, order, Rows(g), w_v.shape[1], 1 + both)
    d_x = product(launch, g, [w_v, w_t], order, triggers=both) if of_x else None
    if not of_weights:
        return d_x, None
    return d_x, weight_gradients(launch, g, Rows(x, packed), order, early=both)


def _check(tokens, x, w_v, w_t):
    weight = w_v.shape[0], x.shape[1]
    check("masked_linear", tokens, x, w_v=(w_v, weight), w_t=(w_t, weight))


_layer = layer("masked_linear", ("w_v", "w_t"), [(1, 2)], _forward, _backward, _check)


def masked_linear(
    x: torch.Tensor, w_v: torch.Tensor, w_t: torch.Tensor, mask: torch.Tensor
) -> torch.Tensor:
    """Return x @ w_v.T for the tokens of the mask and x @ w_t.T for the others.

    x: [tokens, in]; w_v, w_t: [out, in]; mask: bool [tokens]. Returns [tokens, out] in x's dtype.

    Raises:
        ValueError: The shapes or the dtypes do not fit.
        NotImplementedError: A second derivative is asked for.
    """
    return _layer(x, w_v, w_t, mask)
