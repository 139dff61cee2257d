"""Common mistakes in `masked_linear`."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import linear

from common.ops.masked_linear import WEIGHTS, reference
from common.ops.mistakes._changes import TF32, Changes, linear_in_tf32, transposed, with_gradient_of
from common.spec import Reference


def x_by_the_other_weight(x: Tensor, w_v: Tensor, w_t: Tensor, mask: Tensor) -> Tensor:
    """Compute the gradient of x with the weight that the mask does not select."""
    output = reference(x.detach(), w_v, w_t, mask)
    return with_gradient_of(output, output + reference(x, w_v.detach(), w_t.detach(), ~mask))


change = Changes(reference)
MISTAKES: dict[str, Reference] = {
    **change.of_mask("w_v", "w_t"),
    "w_v is read as its transpose": change.arguments(transposed, "w_v"),
    "w_t is read as its transpose": change.arguments(transposed, "w_t"),
    "both weights are read as their transposes": change.arguments(transposed, *WEIGHTS),
    "w_t is read with the strides of w_v": change.call(
        lambda call: {"w_t": call["w_t"].as_strided(call["w_t"].shape, call["w_v"].stride())}
    ),
    "the products are multiplied by the mask: 0 times infinity is NaN": (
        lambda x, w_v, w_t, mask: linear(x, w_v) * mask[:, None] + linear(x, w_t) * ~mask[:, None]
    ),
    "the gradient of w_v sums over all tokens": change.summing_over_all("w_v"),
    "the gradient of w_t sums over all tokens": change.summing_over_all("w_t"),
    "the gradients of both weights sum over all tokens": change.summing_over_all("w_v", "w_t"),
    "the gradients of the weights are exchanged": change.exchanged(WEIGHTS),
    "the gradients of the weights are written as their transposes": change.gradients(
        transposed, *WEIGHTS
    ),
    "the gradient of x takes the weight that the mask does not choose": x_by_the_other_weight,
    TF32: lambda x, w_v, w_t, mask: torch.where(
        mask[:, None], linear_in_tf32(x, w_v), linear_in_tf32(x, w_t)
    ),
    **change.of_upstream(),
}
