"""The masked layers: tokens sorted by kind on the device, and one product a token and weight."""

import functools

import torch

from .gradients import weight_gradients
from .launch import Recorded
from .layers import check, layer
from .partition import Partition
from .products import gated_product, gates_gradient, product
from .tiles import Rows, pack, packed_if_it_pays


@Recorded
def _linear_forward(launch, tokens, tile, _keep, x, w_v, w_t, order):
    """Return the output [tokens, out], and x's packed copy, if there is one."""
    _check_linear(tokens, x, w_v, w_t)
    order = Partition(tokens, tile, order)
    x = packed_if_it_pays(launch, order, Rows(x), w_v.shape[0])
    return product(launch, x, [w_v.T, w_t.T], order), x.packed


@Recorded
def _linear_backward(launch, tokens, tile, of_x, of_weights, g, x, w_v, w_t, packed, order):
    """Return d_x [tokens, in] and d_w [2, out, in]; None for what is not wanted."""
    order, both = Partition(tokens, tile, order), of_x and of_weights
    g = packed_if_it_pays(launch, order, Rows(g), w_v.shape[1], 1 + both)
    d_x = product(launch, g, [w_v, w_t], order, triggers=both) if of_x else None
    if not of_weights:
        return d_x, None
    return d_x, weight_gradients(launch, g, Rows(x, packed), order, early=both)


def _check_linear(tokens, x, *weights):
    shapes = [(weights[0].shape[0], x.shape[1])] * 2
    check("masked_linear", tokens, x, ("w_v", "w_t"), weights, shapes)


_linear = layer("masked_linear", [(1, 2)], _linear_forward, _linear_backward, _check_linear)


def masked_linear(
    x: torch.Tensor, w_v: torch.Tensor, w_t: torch.Tensor, mask: torch.Tensor
) -> torch.Tensor:
    """Return x @ w_v.T for the tokens of the mask and x @ w_t.T for the others.

    x: [tokens, in]; w_v, w_t: [out, in]; mask: bool [tokens]. Returns [tokens, out] in x's dtype.

    Raises:
        ValueError: The shapes or the dtypes do not fit.
        NotImplementedError: A second derivative is asked for.
    """
    return _linear(x, w_v, w_t, mask)


@functools.partial(Recorded, pairs=((1, 3), (4, 6)))
def _ffn_forward(launch, tokens, tile, keep, to_w3, to_u3, x, w1, w2, w3, u1, u2, u3, order):
    """Return the output [tokens, width], the gates [2, rows, inner] to keep, and x's copy."""
    _check_ffn(tokens, x, w1, w2, w3, u1, u2, u3)
    order = Partition(tokens, tile, order)
    x = packed_if_it_pays(launch, order, Rows(x), 2 * w1.shape[0])
    up = [w1.T, u1.T, w3.T, u3.T]
    hidden, gates = gated_product(launch, x, up, (to_w3, to_u3), order, keep)
    out = product(launch, Rows(hidden, sorted=True), [w2.T, u2.T], order)
    return out, gates, x.packed


@Recorded
def _backward_down(launch, tokens, tile, of_down, g, w2, u2, gates, order):
    """Return the gates' gradient [2, rows, inner], and d_w2 and d_u2 [2, width, inner], or None."""
    order = Partition(tokens, tile, order)
    g = pack(launch, order, Rows(g))
    d_gates, hidden = gates_gradient(launch, g, [w2, u2], gates, order)
    if not of_down:
        return d_gates, None
    return d_gates, weight_gradients(launch, g, Rows(hidden, sorted=True), order)


@Recorded
def _backward_up(launch, tokens, tile, of_x, of_up, d_gates, x, w1, w3, u1, u3, packed, order):
    """Return d_x and the gradients of w1 and w3, u1 and u3 [4, inner, width], or None."""
    order, d_gates = Partition(tokens, tile, order), Rows(d_gates.flatten(0, 1), sorted=True)
    d_x = product(launch, d_gates, [w1, u1, w3, u3], order) if of_x else None
    if not of_up:
        return d_x, None
    return d_x, weight_gradients(launch, d_gates, Rows(x, packed), order, pairs=2)


def _ffn_backward(how, g, x, w1, w2, w3, u1, u2, u3, gates, packed, order):
    """Return d_x, those of w1 and w3 [4, inner, width], and of w2 [2, width, inner], or None.

    Two directions, so that the memory of g's copy and of hidden is free in the second one.
    """
    *sizes, of_x, of_up, of_down = how
    d_gates, d_down = _backward_down((*sizes, of_down), g, w2, u2, gates, order)
    if not (of_x or of_up):
        return None, None, d_down
    d_x, d_up = _backward_up((*sizes, of_x, of_up), d_gates, x, w1, w3, u1, u3, packed, order)
    return d_x, d_up, d_down


def _check_ffn(tokens, x, *weights):
    up = weights[0].shape[0], x.shape[1]
    names, shapes = ("w1", "w2", "w3", "u1", "u2", "u3"), [up, up[::-1], up] * 2
    check("masked_ffn", tokens, x, names, weights, shapes)


_ffn = layer(
    "masked_ffn", [(1, 3, 4, 6), (2, 5)], _ffn_forward, _ffn_backward, _check_ffn,
    kept=[lambda rows, x, w1, *_: (2, rows, w1.shape[0])], products=2,
)  # fmt: skip


def masked_ffn(
    x: torch.Tensor, w1: torch.Tensor, w2: torch.Tensor, w3: torch.Tensor, u1: torch.Tensor,
    u2: torch.Tensor, u3: torch.Tensor, mask: torch.Tensor,
) -> torch.Tensor:  # fmt: skip
    """Return w2(silu(w1 x) * w3 x) for the tokens of the mask; the others take u1, u2 and u3.

    x: [tokens, width]; w1, w3, u1, u3: [inner, width]; w2, u2: [width, inner]; mask: bool [tokens].
    Returns x's shape and dtype.

    Raises:
        ValueError: The shapes or the dtypes do not fit.
        NotImplementedError: A second derivative is asked for.
    """
    return _ffn(x, w1, w2, w3, u1, u2, u3, mask)
