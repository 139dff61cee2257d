"""Outputs and derivatives, by the same formulas in the harness and in a solution's process."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch


def outputs_of(returned: Any) -> tuple[torch.Tensor, ...]:
    """Return what a call returned as a tuple: one output is a tuple of one."""
    return returned if isinstance(returned, tuple) else (returned,)


def derivatives(
    outputs: Iterable[torch.Tensor],
    inputs: Sequence[torch.Tensor],
    upstream: Iterable[torch.Tensor],
    **options: Any,
) -> Sequence[Any]:
    """Return the gradients of the inputs; None for one on which no output depends.

    An output without a graph is a constant: that of k, where q alone takes a gradient.
    """
    pairs = [pair for pair in zip(outputs, upstream, strict=True) if pair[0].requires_grad]
    ends, weights = [end for end, _ in pairs], [weight for _, weight in pairs]
    return torch.autograd.grad(ends, inputs, weights, allow_unused=True, **options)


def second_derivatives(
    outputs: Sequence[torch.Tensor],
    inputs: Sequence[torch.Tensor],
    weights: Iterable[torch.Tensor],
    constant: bool,
) -> Sequence[Any]:
    """Return the gradients of the inputs' gradients, weighted by the inputs themselves.

    What autograd treats as constant counts as zero, as in a loss with further terms. The graph of
    the outputs is kept, and the inputs are leaves. The upstream gradients are the weights if they
    are `constant`; otherwise the weights times the outputs, as if the loss were quadratic in them.
    """
    pairs = zip(outputs, weights, strict=True)
    upstream = [weight if constant else output * weight for output, weight in pairs]
    first = derivatives(outputs, inputs, upstream, create_graph=True)
    parts = [(g, x.detach()) for g, x in zip(first, inputs, strict=True)
             if g is not None and g.requires_grad]  # fmt: skip
    for x in inputs:
        x.grad = None
    if parts:  # `autograd.grad` would skip the error of torch's `once_differentiable`
        torch.autograd.backward([g for g, _ in parts], [x for _, x in parts], retain_graph=True)
    second = [torch.zeros_like(x) if x.grad is None else x.grad for x in inputs]
    for x in inputs:
        x.grad = None
    return second
