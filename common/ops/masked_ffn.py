"""`masked_ffn`: a SwiGLU layer with two sets of weights; a mask selects one set for each token.

    out[token] = mask[token] ? (silu(x @ w1.T) * (x @ w3.T)) @ w2.T    with x = x[token]
                             : (silu(x @ u1.T) * (x @ u3.T)) @ u2.T

The gradient of a weight sums over only the tokens that select the weight's set.

Sources: `MaskedFFN` of https://github.com/wenhaoli-xmu/ffn_kernel; SwiGLU,
https://arxiv.org/abs/2002.05202.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import linear, silu

from common.ops._masked import masked


class MaskedFFN(Protocol):
    """The signature of every solution."""

    def __call__(
        self, x: Tensor, w1: Tensor, w2: Tensor, w3: Tensor,
        u1: Tensor, u2: Tensor, u3: Tensor, mask: Tensor,
    ) -> Tensor:  # fmt: skip
        """Apply to each token the set of weights that the mask selects for the token.

        Args:
            x: `[tokens, width]`; bfloat16, float16 or float32, the weights' dtype.
            w1: The visual tokens' gate, `[intermediate, width]` as in `torch.nn.functional.linear`.
            w2: The visual tokens' down projection, `[width, intermediate]`.
            w3: The visual tokens' up projection, `[intermediate, width]`.
            u1: The textual tokens' gate, of w1's shape.
            u2: The textual tokens' down projection, of w2's shape.
            u3: The textual tokens' up projection, of w3's shape.
            mask: bool `[tokens]`, true for the visual tokens.

        Returns:
            `[tokens, width]` in x's dtype.
        """


def reference(
    x: Tensor, w1: Tensor, w2: Tensor, w3: Tensor, u1: Tensor, u2: Tensor, u3: Tensor, mask: Tensor
) -> Tensor:
    """Apply both layers to all tokens, then select."""
    visual = linear(silu(linear(x, w1)) * linear(x, w3), w2)
    textual = linear(silu(linear(x, u1)) * linear(x, u3), u2)
    return torch.where(mask[:, None], visual, textual)


UP, DOWN = ("intermediate", "width"), ("width", "intermediate")
WEIGHTS = ("w1", "w2", "w3", "u1", "u2", "u3")

OP = masked(
    name="masked_ffn",
    order=4,
    tracks={
        "standard": "The visual tokens are one run of at most 1,024 (span), one in each of eight "
        "sequences (8spans), one run of a third of all tokens (third), or drawn at random.",
    },
    interface=MaskedFFN,
    reference=reference,
    widths={"width": "feature", "intermediate": "intermediate feature"},
    weights=dict(zip(WEIGHTS, (UP, DOWN, UP) * 2, strict=True)),
    output="width",
    model=(1024, 2048),
    # eager keeps four intermediate tensors for each set
    activations=lambda width, intermediate: 10 * intermediate + 2 * width,
    values=("zeros",),  # products of two subnormal or two huge values leave float16's range
    large=256,
)
