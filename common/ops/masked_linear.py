"""`masked_linear`: a linear layer with two weights; a mask selects one weight for each token.

    out[token] = mask[token] ? x[token] @ w_v.T : x[token] @ w_t.T

Visual and textual tokens are multiplied by different weights. The gradient of a weight sums over
only the tokens that select the weight.

Source: `MaskedLinear` of https://github.com/wenhaoli-xmu/ffn_kernel.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, Protocol

import torch
from torch.nn.functional import linear

from common.ops import _masked
from common.ops._masked import MaskedCase
from common.ops._masked_words import facts, tokens_axis
from common.spec import ITEMSIZE, Axes, Axis, Direction, Op, Work


class MaskedLinear(Protocol):
    """The signature of every solution."""

    def __call__(
        self, x: torch.Tensor, w_v: torch.Tensor, w_t: torch.Tensor, mask: torch.Tensor
    ) -> torch.Tensor:
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


def reference(
    x: torch.Tensor, w_v: torch.Tensor, w_t: torch.Tensor, mask: torch.Tensor
) -> torch.Tensor:
    """Multiply all tokens by both weights, then select."""
    return torch.where(mask[:, None], linear(x, w_v), linear(x, w_t))


WEIGHTS = ("w_v", "w_t")


def draw(case: MaskedCase, generator: torch.Generator) -> dict[str, Any]:
    """Draw the arguments of one call."""
    in_features, out_features = case.widths
    return {
        "x": _masked.draw_x(case, generator),
        **_masked.draw_weights(case, WEIGHTS, [(out_features, in_features)], generator),
        "mask": _masked.draw_mask(case, generator),
    }


def work(case: MaskedCase, direction: Direction) -> Work:
    """Return the minimum work: one product for each token, and the gradients of both factors.

    Forward reads x, the mask and the weights that some token selects, and writes the output.
    Backward reads the same tensors and the output's gradient, and writes the gradients of x and of
    both weights.
    """
    tokens, (k, n) = case.tokens, case.widths
    itemsize = getattr(torch, case.dtype).itemsize
    read = tokens * k + tokens * n + case.weight_sets * k * n
    if direction == "forward":
        return Work(read * itemsize + tokens, 2 * tokens * k * n, ((tokens, k, n),))
    written = tokens * k + 2 * k * n
    products = ((tokens, n, k), (n, tokens, k))
    return Work((read + written) * itemsize + tokens, 4 * tokens * k * n, products)


def workspace(case: MaskedCase) -> int:
    """Return the bytes that eager allocates: the products with both weights, and all gradients."""
    tokens, (k, n) = case.tokens, case.widths
    return (4 * tokens * n + tokens * k + 2 * k * n) * ITEMSIZE[case.dtype]


def axes(case: MaskedCase, arguments: Mapping[str, Any]) -> Axes:
    """Name the dimensions of the output and of each gradient."""
    tokens = tokens_axis(arguments)
    inputs, outputs = Axis("input feature"), Axis("output feature")
    weights = dict.fromkeys(WEIGHTS, (outputs, inputs))
    return {"output": (tokens, outputs), "x": (tokens, inputs), **weights}


OP = Op(
    name="masked_linear",
    order=3,
    interface=MaskedLinear,
    reference=reference,
    differentiable=("x", *WEIGHTS),
    tracks=_masked.TRACKS,
    cases=functools.partial(
        _masked.cases,
        model=(1024, 1024),
        wide=(4096, 14336),
        weights=len(WEIGHTS),
        values=("zeros", "subnormal", "huge"),
    ),
    twin=_masked.twin,
    draw=draw,
    output=lambda case: (case.tokens, case.widths[1]),
    work=work,
    workspace=workspace,
    split=_masked.TOKENS,
    axes=axes,
    facts=functools.partial(facts, widths=("in", "out"), weights=WEIGHTS),
    slack=_masked.MASKED_SLACK,
    movable=("mask",),
    table=_masked.table(len(WEIGHTS)),
    large=_masked.large(2048),
    layouts=functools.partial(_masked.layouts, weights=WEIGHTS),
)
