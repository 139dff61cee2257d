"""`masked_ffn`: a SwiGLU layer with two sets of weights; a mask selects one set for each token.

    out[token] = mask[token] ? (silu(x @ w1.T) * (x @ w3.T)) @ w2.T    with x = x[token]
                             : (silu(x @ u1.T) * (x @ u3.T)) @ u2.T

The gradient of a weight sums over only the tokens that select the weight's set.

Sources: `MaskedFFN` of https://github.com/wenhaoli-xmu/ffn_kernel; SwiGLU,
https://arxiv.org/abs/2002.05202.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, Protocol

import torch
from torch.nn.functional import linear, silu

from common.ops import _masked
from common.ops._masked import MaskedCase
from common.ops._masked_words import facts, tokens_axis
from common.spec import ITEMSIZE, Axes, Axis, Direction, Op, Work


class MaskedFFN(Protocol):
    """The signature of every solution."""

    def __call__(
        self,
        x: torch.Tensor,
        w1: torch.Tensor,
        w2: torch.Tensor,
        w3: torch.Tensor,
        u1: torch.Tensor,
        u2: torch.Tensor,
        u3: torch.Tensor,
        mask: torch.Tensor,
    ) -> torch.Tensor:
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
    x: torch.Tensor,
    w1: torch.Tensor,
    w2: torch.Tensor,
    w3: torch.Tensor,
    u1: torch.Tensor,
    u2: torch.Tensor,
    u3: torch.Tensor,
    mask: torch.Tensor,
) -> torch.Tensor:
    """Apply both layers to all tokens, then select."""
    visual = linear(silu(linear(x, w1)) * linear(x, w3), w2)
    textual = linear(silu(linear(x, u1)) * linear(x, u3), u2)
    return torch.where(mask[:, None], visual, textual)


WEIGHTS = ("w1", "w2", "w3", "u1", "u2", "u3")


def draw(case: MaskedCase, generator: torch.Generator) -> dict[str, Any]:
    """Draw the arguments of one call."""
    width, inner = case.widths
    shapes = [(inner, width), (width, inner), (inner, width)]
    return {
        "x": _masked.draw_x(case, generator),
        **_masked.draw_weights(case, WEIGHTS, shapes, generator),
        "mask": _masked.draw_mask(case, generator),
    }


def work(case: MaskedCase, direction: Direction) -> Work:
    """Return the minimum work: three products for each token, and the gradients of all factors.

    The bytes assume that intermediate values stay on the chip and that backward gets the needed
    intermediate values for free. Forward reads x, the mask and the weights that some token selects,
    and writes the output. Backward reads the same tensors and the output's gradient, and writes the
    gradients of x and of all weights.
    """
    tokens, (k, n) = case.tokens, case.widths
    itemsize = getattr(torch, case.dtype).itemsize
    moved = 2 * tokens * k + 3 * case.weight_sets * k * n
    up, down = (tokens, k, n), (tokens, n, k)
    if direction == "forward":
        return Work(moved * itemsize + tokens, 6 * tokens * k * n, (up, up, down))
    moved += tokens * k + 6 * k * n
    weights = ((n, tokens, k), (n, tokens, k), (k, tokens, n))
    return Work(moved * itemsize + tokens, 12 * tokens * k * n, (up, down, down, *weights))


def workspace(case: MaskedCase) -> int:
    """Return the bytes that eager allocates; it keeps four intermediate tensors for each set."""
    tokens, (k, n) = case.tokens, case.widths
    return (10 * tokens * n + 2 * tokens * k + 6 * k * n) * ITEMSIZE[case.dtype]


def axes(case: MaskedCase, arguments: Mapping[str, Any]) -> Axes:
    """Name the dimensions of the output and of each gradient."""
    features, inner = Axis("feature"), Axis("intermediate feature")
    rows = (tokens_axis(arguments), features)
    shapes = ((inner, features), (features, inner), (inner, features))
    return {"output": rows, "x": rows, **dict(zip(WEIGHTS, shapes * 2, strict=True))}


OP = Op(
    name="masked_ffn",
    order=4,
    interface=MaskedFFN,
    reference=reference,
    differentiable=("x", *WEIGHTS),
    tracks=_masked.TRACKS,
    cases=functools.partial(
        _masked.cases,
        model=(1024, 2048),
        wide=(4096, 14336),
        weights=len(WEIGHTS),
        values=("zeros",),  # products of two subnormal or two huge values leave float16's range
    ),
    twin=_masked.twin,
    draw=draw,
    output=lambda case: case.shape,
    work=work,
    workspace=workspace,
    split=_masked.TOKENS,
    axes=axes,
    facts=functools.partial(facts, widths=("width", "intermediate"), weights=WEIGHTS),
    slack=_masked.MASKED_SLACK,
    movable=("mask",),
    table=_masked.table(len(WEIGHTS)),
    large=_masked.large(256),
    layouts=functools.partial(_masked.layouts, weights=WEIGHTS),
)
