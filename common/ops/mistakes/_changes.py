"""Wrappers that change a reference's arguments, or only its gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn.functional import linear

from common.spec import Reference

Call = dict[str, Any]
"""The arguments of a call, by name."""
Change = Callable[[torch.Tensor], torch.Tensor]


def with_arguments(reference: Reference, change: Callable[[Call], Call]) -> Reference:
    """Return the reference, called with the arguments that `change` returns in place of its own.

    For example, `with_arguments(reference, lambda call: {"mask": ~call["mask"]})`.
    """
    return lambda **call: reference(**call | change(call))


class _WithGradientOf(torch.autograd.Function):
    """Return the first tensor; pass the whole gradient to the second tensor."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        return value.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return None, *gradients


def with_gradient_of(value: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Return `value`; its gradient flows to `other`, a tensor of the same shape."""
    changed: torch.Tensor = _WithGradientOf.apply(value, other)  # type: ignore[no-untyped-call]
    return changed


class _InBackward(torch.autograd.Function):
    """The identity with a changed gradient."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, change: Change) -> torch.Tensor:
        ctx.change = change
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return ctx.change(*gradients), None


def in_backward(tensor: torch.Tensor, change: Change) -> torch.Tensor:
    """Return the tensor, and apply `change` to its gradient."""
    changed: torch.Tensor = _InBackward.apply(tensor, change)  # type: ignore[no-untyped-call]
    return changed


def of_upstream(reference: Reference) -> dict[str, Reference]:
    """Return the mistakes with the upstream gradient, the same for every op."""
    return {
        "the upstream gradient is taken as ones": (
            lambda **call: in_backward(reference(**call), torch.ones_like)
        ),
        "each gradient has twice its value": (
            lambda **call: in_backward(reference(**call), lambda gradient: 2 * gradient)
        ),
    }


def exchanging_gradients(reference: Reference, *pairs: tuple[str, str]) -> Reference:
    """Return the reference where the two arguments of each pair get each other's gradient."""
    other = {**dict(pairs), **{second: first for first, second in pairs}}
    return with_arguments(
        reference,
        lambda call: {name: with_gradient_of(call[name], call[other[name]]) for name in other},
    )


def transposed(weight: torch.Tensor) -> torch.Tensor:
    """Return what a kernel reads, or writes, that exchanges the strides of a weight.

    Raises:
        NotImplementedError: The weight is not square, so that the kernel's code decides what is
            read.
    """
    if weight.shape[0] != weight.shape[1] and 1 not in weight.shape:
        raise NotImplementedError("the transpose has another shape")
    return weight.T.reshape(weight.shape)


def transposing(reference: Reference, *weights: str) -> Reference:
    """Return the reference with the transposes of these weights."""
    return with_arguments(
        reference, lambda call: {name: transposed(call[name]) for name in weights}
    )


def transposing_gradients(reference: Reference, *weights: str) -> Reference:
    """Return the reference with the transposes of these weights' gradients."""
    return with_arguments(
        reference, lambda call: {name: in_backward(call[name], transposed) for name in weights}
    )


TF32 = """float32 is multiplied in tf32, as tl.dot does without input_precision="ieee\""""


class _InTf32(torch.autograd.Function):
    """`linear` with products of tf32 factors (10 fraction bits), in backward too."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        return linear(to_tf32(x), to_tf32(weight))

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        x, weight = map(to_tf32, ctx.saved_tensors)
        (gradient,) = map(to_tf32, gradients)
        return gradient @ weight, gradient.T @ x


def linear_in_tf32(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Return `linear(x, weight)` in tf32; half types lose no precision."""
    product: torch.Tensor = _InTf32.apply(x, weight)  # type: ignore[no-untyped-call]
    return product


def to_tf32(values: torch.Tensor) -> torch.Tensor:
    """Clear the low 13 bits of float32 values, as a tensor core does."""
    bits = values.float().contiguous().view(torch.int32) & ~0x1FFF
    return bits.view(torch.float32).to(values.dtype)
