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
        inputs: The differentiable inputs.
        weight: The upstream gradient; times the output, unless `constant`, as if the loss were
            quadratic in the output.
        constant: Whether the upstream gradient takes no gradient.
    """
    upstream = weight if constant else output * weight
    first = torch.autograd.grad(output, inputs, upstream, create_graph=True, allow_unused=True)
    graphs = [(g, x.detach()) for g, x in zip(first, inputs, strict=True)
              if g is not None and g.requires_grad]  # fmt: skip
    zeros = [torch.zeros_like(x) for x in inputs]
    if not graphs:
        return zeros
    gradients, weights = zip(*graphs, strict=True)
    second = torch.autograd.grad(gradients, inputs, weights, retain_graph=True, allow_unused=True)
    return [zero if g is None else g for g, zero in zip(second, zeros, strict=True)]
