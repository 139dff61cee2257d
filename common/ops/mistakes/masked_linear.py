"""Common mistakes in `masked_linear`."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch.nn.functional import linear

from common.ops.masked_linear import WEIGHTS, reference
from common.ops.mistakes._changes import (
    TF32,
    Call,
    exchanging_gradients,
    linear_in_tf32,
    of_upstream,
    transposing,
    transposing_gradients,
    with_arguments,
    with_gradient_of,
)
from common.spec import Reference

replacing: Callable[[Callable[[Call], Call]], Reference] = functools.partial(
    with_arguments, reference
)


def by_product(
    x: torch.Tensor, w_v: torch.Tensor, w_t: torch.Tensor, mask: torch.Tensor
) -> torch.Tensor:
    """Multiply by the mask and add, in place of `where`."""
    factor = mask[:, None].to(x.dtype)
    return linear(x, w_v) * factor + linear(x, w_t) * (1 - factor)


def summing_over_all(*weights: str) -> Reference:
    """Return a `masked_linear` where the gradients of the named weights sum over all tokens."""

    def changed(x: torch.Tensor, mask: torch.Tensor, **values: torch.Tensor) -> torch.Tensor:
        output = reference(x, **values, mask=mask)
        extra_terms = [
            linear(x.detach(), values[name]) * (~mask if name == "w_v" else mask)[:, None]
            for name in weights
        ]
        return with_gradient_of(output, sum(extra_terms, output))

    return changed


def x_by_the_other_weight(
    x: torch.Tensor, w_v: torch.Tensor, w_t: torch.Tensor, mask: torch.Tensor
) -> torch.Tensor:
    """Compute the gradient of x with the weight that the mask does not select."""
    output = reference(x.detach(), w_v, w_t, mask)
    return with_gradient_of(output, output + reference(x, w_v.detach(), w_t.detach(), ~mask))


def in_tf32(
    x: torch.Tensor, w_v: torch.Tensor, w_t: torch.Tensor, mask: torch.Tensor
) -> torch.Tensor:
    """Compute all products in tf32."""
    return torch.where(mask[:, None], linear_in_tf32(x, w_v), linear_in_tf32(x, w_t))


MISTAKES: dict[str, Reference] = {
    "the mask is negated": replacing(lambda call: {"mask": ~call["mask"]}),
    "every token takes w_v": replacing(lambda call: {"mask": torch.ones_like(call["mask"])}),
    "every token takes w_t": replacing(lambda call: {"mask": torch.zeros_like(call["mask"])}),
    "w_v is read as its transpose": transposing(reference, "w_v"),
    "w_t is read as its transpose": transposing(reference, "w_t"),
    "both weights are read as their transposes": transposing(reference, *WEIGHTS),
    "w_t is read with the strides of w_v": replacing(
        lambda call: {"w_t": call["w_t"].as_strided(call["w_t"].shape, call["w_v"].stride())}
    ),
    "the products are multiplied by the mask: 0 times infinity is NaN": by_product,
    "the gradient of w_v sums over all tokens": summing_over_all("w_v"),
    "the gradient of w_t sums over all tokens": summing_over_all("w_t"),
    "the gradients of both weights sum over all tokens": summing_over_all("w_v", "w_t"),
    "the gradients of the weights are exchanged": exchanging_gradients(reference, WEIGHTS),
    "the gradients of the weights are written as their transposes": transposing_gradients(
        reference, *WEIGHTS
    ),
    "the gradient of x takes the weight that the mask does not choose": x_by_the_other_weight,
    TF32: in_tf32,
    **of_upstream(reference),
}
