"""Common mistakes in `masked_ffn`."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch.nn.functional import gelu, linear, silu

from common.ops.masked_ffn import reference
from common.ops.mistakes._changes import (
    TF32,
    Call,
    linear_in_tf32,
    of_upstream,
    with_arguments,
    with_gradient_of,
)
from common.spec import Reference

replacing: Callable[[Callable[[Call], Call]], Reference] = functools.partial(
    with_arguments, reference
)


def with_hidden(
    hidden: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    linear: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] = linear,
) -> Reference:
    """Return a `masked_ffn` with another function of the gate and up projections.

    Args:
        hidden: The function of gate and up, in place of `silu(gate) * up`.
        linear: The function that multiplies features by a weight.
    """

    def changed(x: torch.Tensor, mask: torch.Tensor, **weights: torch.Tensor) -> torch.Tensor:
        visual, textual = (
            linear(
                hidden(linear(x, weights[f"{side}1"]), linear(x, weights[f"{side}3"])),
                weights[f"{side}2"],
            )
            for side in "wu"
        )
        return torch.where(mask[:, None], visual, textual)

    return changed


def with_derivative(derivative: Callable[[torch.Tensor], torch.Tensor]) -> Reference:
    """Return a `masked_ffn` whose backward uses another derivative of SiLU."""
    return with_hidden(
        lambda gate, up: with_gradient_of(silu(gate), gate * derivative(gate.detach())) * up
    )


def summing_over_all(x: torch.Tensor, mask: torch.Tensor, **weights: torch.Tensor) -> torch.Tensor:
    """Sum the gradient of every weight over the tokens of both sets."""
    output = reference(x, **weights, mask=mask)
    return with_gradient_of(output, output + reference(x.detach(), **weights, mask=~mask))


MISTAKES: dict[str, Reference] = {
    "the mask is negated": replacing(lambda call: {"mask": ~call["mask"]}),
    "every token takes the w's": replacing(lambda call: {"mask": torch.ones_like(call["mask"])}),
    "every token takes the u's": replacing(lambda call: {"mask": torch.zeros_like(call["mask"])}),
    "gate and up are exchanged": with_hidden(lambda gate, up: gate * silu(up)),
    "w2 and u2 are exchanged": replacing(lambda call: {"w2": call["u2"], "u2": call["w2"]}),
    "SiLU is left out": with_hidden(lambda gate, up: gate * up),
    "SiLU is applied to the product": with_hidden(lambda gate, up: silu(gate * up)),
    "SiLU is applied to both projections": with_hidden(lambda gate, up: silu(gate) * silu(up)),
    "a sigmoid stands in the place of SiLU": with_hidden(lambda gate, up: gate.sigmoid() * up),
    "GELU stands in the place of SiLU": with_hidden(lambda gate, up: gelu(gate) * up),
    "gate and up are added, not multiplied": with_hidden(lambda gate, up: silu(gate) + up),
    "the product with up is left out": with_hidden(lambda gate, up: silu(gate) + 0 * up),
    "backward takes the sigmoid as SiLU's derivative": with_derivative(torch.sigmoid),
    "backward takes the sigmoid's derivative as SiLU's": with_derivative(
        lambda gate: gate.sigmoid() * (1 - gate.sigmoid())
    ),
    "backward leaves out SiLU's derivative": with_derivative(torch.ones_like),
    "the gradients of gate and up are exchanged": replacing(
        lambda call: {
            f"{side}{index}": with_gradient_of(call[f"{side}{index}"], call[f"{side}{other}"])
            for side in "wu"
            for index, other in ("13", "31")
        }
    ),
    "the gradients of the weights sum over all tokens": summing_over_all,
    TF32: with_hidden(lambda gate, up: silu(gate) * up, linear_in_tf32),
    **of_upstream(reference),
}
