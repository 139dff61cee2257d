"""`masked_linear`: a linear layer with two weights; a mask selects one weight for each token.

    out[token] = mask[token] ? x[token] @ w_v.T : x[token] @ w_t.T

Visual and textual tokens are multiplied by different weights. The gradient of a weight sums over
only the tokens that select the weight.

Source: `MaskedLinear` of https://github.com/wenhaoli-xmu/ffn_kernel.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import linear

from common.ops._masked import masked


class MaskedLinear(Protocol):
    """The signature of every solution."""

    def __call__(self, x: Tensor, w_v: Tensor, w_t: Tensor, mask: Tensor) -> Tensor:
        """Multiply each token by the weight that the mask selects for the token.

        Args:
            x: `[tokens, in_features]`; bfloat16, float16 or float32, the weights' dtype.
            w_v: The visual tokens' weight, `[out_features, in_features]` as in
                `torch.nn.functional.linear`.
            w_t: The textual tokens' weight, of the same shape.
            mask: bool `[tokens]`, true for the visual tokens.

        Returns:
            `[tokens, out_features]` in x's dtype.
        """


def reference(x: Tensor, w_v: Tensor, w_t: Tensor, mask: Tensor) -> Tensor:
    """Multiply all tokens by both weights, then select."""
    return torch.where(mask[:, None], linear(x, w_v), linear(x, w_t))


WEIGHTS = ("w_v", "w_t")

OP = masked(
    name="masked_linear",
    order=3,
    tracks={
        "standard": "The visual tokens are one run of at most 1,024 (span), one in each of eight "
        "sequences (8spans), one run of a third of all tokens (third), or drawn at random.",
    },
    interface=MaskedLinear,
    reference=reference,
    widths={"in": "input feature", "out": "output feature"},
    weights=dict.fromkeys(WEIGHTS, ("out", "in")),
    output="out",
    model=(1024, 1024),
    # the products with both weights, and all gradients
    activations=lambda in_features, out_features: 4 * out_features + in_features,
    values=("zeros", "subnormal", "huge"),
    large=2048,
)
