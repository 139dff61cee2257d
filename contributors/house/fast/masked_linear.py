"""Tokens sorted by kind on the device; gathered tiles, one product a token."""

import torch

from .gradients import weight_gradients
from .launch import Recorded
from .layers import layer
from .partition import Partition, check, sort
from .products import product
from .rows import Rows, packed_if_it_pays, require_even


@Recorded
def _forward(launch, tokens, tile, x, w_v, w_t, mask, order):
    """Return the output [tokens, out], x's packed copy, if there is one, and a new mask's order."""
    _check(tokens, mask, x, w_v, w_t)
    require_even(tile, [x], [w_v, w_t])
    new = None if mask is None else sort(launch, tile, mask)
    order = Partition(tokens, tile, order if mask is None else new)
    x = packed_if_it_pays(launch, order, Rows(x), w_v.shape[0])
    return product(launch, x, [w_v.T, w_t.T], order), x.packed, new


@Recorded
def _backward(launch, tokens, tile, of_x, of_weights, g, x, w_v, w_t, packed, order):
    """Return d_x [tokens, in] and d_w [2, out, in]; None for what is not wanted."""
    require_even(tile, [g, x], [w_v, w_t])
    order, both = Partition(tokens, tile, order), of_x and of_weights
    g = packed_if_it_pays(launch, order, Rows(g), w_v.shape[1], 1 + both)
    d_x = product(launch, g, [w_v, w_t], order, triggers=both) if of_x else None
    if not of_weights:
        return d_x, None
    return d_x, weight_gradients(launch, g, Rows(x, packed), order, early=both)


def _check(tokens, mask, x, w_v, w_t):
    weight = w_v.shape[0], x.shape[1]
    check("masked_linear", tokens, mask, x, w_v=(w_v, weight), w_t=(w_t, weight))


def _run_backward(partition, wanted, *tensors):
    return _backward((partition.tokens, partition.tile, *wanted), *tensors, partition.sorted)


_layer = layer(
    "masked_linear",
    weights=("w_v", "w_t"),
    stacks=[(1, 2)],
    forward=lambda partition, keep, *tensors: partition.forward(_forward, (), *tensors),
    backward=_run_backward,
    check=_check,
)


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
