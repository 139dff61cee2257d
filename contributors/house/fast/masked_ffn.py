"""Tokens sorted by kind on the device; the gate and its gradient in the products' epilogues."""

import functools

import torch

from .gradients import weight_gradients
from .launch import Recorded
from .layers import check, layer
from .partition import Partition
from .products import gated_product, gates_gradient, product
from .tiles import Rows, pack, packed_if_it_pays


@functools.partial(Recorded, pairs=((1, 3), (4, 6)))
def _forward(launch, tokens, tile, keep, to_w3, to_u3, x, w1, w2, w3, u1, u2, u3, order):
    """Return the output [tokens, width], the gates [2, rows, inner] to keep, and x's packed copy,
    if there is one.
    """
    _check(tokens, x, w1, w2, w3, u1, u2, u3)
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


def _backward(how, g, x, w1, w2, w3, u1, u2, u3, gates, packed, order):
    """Return d_x, those of w1 and w3 [4, inner, width], and of w2 [2, width, inner], or None.

    Two directions, so that the memory of g's copy and of hidden is free in the second one.
    """
    *sizes, of_x, of_up, of_down = how
    d_gates, d_down = _backward_down((*sizes, of_down), g, w2, u2, gates, order)
    if not (of_x or of_up):
        return None, None, d_down
    d_x, d_up = _backward_up((*sizes, of_x, of_up), d_gates, x, w1, w3, u1, u3, packed, order)
    return d_x, d_up, d_down


def _check(tokens, x, w1, w2, w3, u1, u2, u3):
    up, down = (w1.shape[0], x.shape[1]), (x.shape[1], w1.shape[0])
    weights = {"w1": (w1, up), "w2": (w2, down), "w3": (w3, up)}
    weights |= {"u1": (u1, up), "u2": (u2, down), "u3": (u3, up)}
    check("masked_ffn", tokens, x, **weights)


_layer = layer(
    "masked_ffn", ("w1", "w2", "w3", "u1", "u2", "u3"), [(1, 3, 4, 6), (2, 5)],
    _forward, _backward, _check,
    kept={"gates": lambda rows, x, w1, *_: (2, rows, w1.shape[0])}, products=2,
)  # fmt: skip


def masked_ffn(
    x: torch.Tensor,
    w1: torch.Tensor,
    w2: torch.Tensor,
    w3: torch.Tensor,
    u1: torch.Tensor,
    u2: torch.Tensor,
    u3: torch.Tensor,
    mask: torch.Tensor,
) -> torch.Tensor:
    """Return w2(silu(w1 x) * w3 x) for the tokens of the mask; the others take u1, u2 and u3.

    x: [tokens, width]; w1, w3, u1, u3: [inner, width]; w2, u2: [width, inner]; mask: bool [tokens].
    Returns x's shape and dtype.

    Raises:
        ValueError: The shapes or the dtypes do not fit.
        NotImplementedError: A second derivative is asked for.
    """
    return _layer(x, w1, w2, w3, u1, u2, u3, mask)
