"""Common mistakes in `masked_ffn`."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations

import torch
from torch import Tensor
from torch.nn.functional import gelu, linear, silu

from common.ops.masked_ffn import WEIGHTS, reference
from common.ops.mistakes._changes import TF32, Changes, linear_in_tf32, transposed, with_gradient_of
from common.spec import Reference

Function = Callable[[Tensor, Tensor], Tensor]


def with_hidden(hidden: Function, linear: Function = linear) -> Reference:
    """Return a `masked_ffn` with another function of gate and up than `silu(gate) * up`.

    `linear` multiplies features by a weight.
    """

    def layer(x: Tensor, w1: Tensor, w2: Tensor, w3: Tensor) -> Tensor:
        return linear(hidden(linear(x, w1), linear(x, w3)), w2)

    def changed(x: Tensor, mask: Tensor, **weights: Tensor) -> Tensor:
        visual, textual = (layer(x, *(weights[f"{side}{i}"] for i in (1, 2, 3))) for side in "wu")
        return torch.where(mask[:, None], visual, textual)

    return changed


def with_derivative(derivative: Callable[[Tensor], Tensor]) -> Reference:
    """Return a `masked_ffn` whose backward uses another derivative of SiLU."""
    return with_hidden(
        lambda gate, up: with_gradient_of(silu(gate), gate * derivative(gate.detach())) * up
    )


change = Changes(reference)
MISTAKES: dict[str, Reference] = {
    **change.of_mask("the w's", "the u's"),
    "gate and up are exchanged": with_hidden(lambda gate, up: gate * silu(up)),
    "w2 and u2 are exchanged": change.call(lambda call: {"w2": call["u2"], "u2": call["w2"]}),
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
    "the gradients of gate and up are exchanged, and all that follows": with_hidden(
        lambda gate, up: silu(with_gradient_of(gate, up)) * with_gradient_of(up, gate)
    ),
    "the gradients of the weights of gate and up are exchanged": change.exchanged(
        ("w1", "w3"), ("u1", "u3")
    ),
    "the gradients of the w's and the u's are exchanged": change.exchanged(
        ("w1", "u1"), ("w2", "u2"), ("w3", "u3")
    ),
    **{
        f"the gradients of {one} and {other} are exchanged": change.exchanged((one, other))
        for one, other in (*combinations(("w1", "w3", "u1", "u3"), 2), ("w2", "u2"))
    },
    **{
        f"{' and '.join(names)} are read as their transposes": change.arguments(transposed, *names)
        for names in (("w1", "u1"), ("w2", "u2"), ("w3", "u3"), ("w1", "w3", "u1", "u3"))
    },
    "all weights are read as their transposes": change.arguments(transposed, *WEIGHTS),
    "the gradients of the weights are written as their transposes": change.gradients(
        transposed, *WEIGHTS
    ),
    "the gradients of the weights sum over all tokens": change.summing_over_all(*WEIGHTS),
    TF32: with_hidden(lambda gate, up: silu(gate) * up, linear_in_tf32),
    **change.of_upstream(),
}
