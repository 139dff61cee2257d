"""Second derivatives, by the same formula in the harness and in a solution's process."""

from __future__ import annotations

from collections.abc import Sequence

import torch


def second_derivatives(
    output: torch.Tensor, inputs: Sequence[torch.Tensor], weight: torch.Tensor, constant: bool
) -> list[torch.Tensor]:
    """Return the gradients of the inputs' gradients, weighted by the inputs themselves.

    What autograd treats as constant counts as zero, as in a loss with further terms.

    Args:
        output: The output of a call, whose graph is kept.
        inputs: The differentiable inputs, which are leaves.
        weight: The upstream gradient; times the output, unless `constant`, as if the loss were
            quadratic in the output.
        constant: Whether the upstream gradient takes no gradient.
    """
    upstream = weight if constant else output * weight
    first = torch.autograd.grad(output, inputs, upstream, create_graph=True, allow_unused=True)
    pairs = [(g, x.detach()) for g, x in zip(first, inputs, strict=True)
             if g is not None and g.requires_grad]  # fmt: skip
    for x in inputs:
        x.grad = None
    if pairs:  # `autograd.grad` would skip the error of torch's `once_differentiable`
        torch.autograd.backward([g for g, _ in pairs], [x for _, x in pairs], retain_graph=True)
    second = [torch.zeros_like(x) if x.grad is None else x.grad for x in inputs]
    for x in inputs:
        x.grad = None
    return second
