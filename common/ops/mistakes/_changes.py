"""Changes of a reference: of its arguments, or only of gradients."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear

from common.spec import Reference

Call = dict[str, Any]
"""The arguments of a call, by name."""
Change = Callable[[Tensor], Tensor]
TF32 = """float32 is multiplied in tf32, as tl.dot does without input_precision="ieee\""""


def with_gradient_of(value: Tensor, other: Tensor) -> Tensor:
    """Return `value`; its gradient flows to `other`, a tensor of the same shape."""
    return value.detach() + (other - other.detach()).nan_to_num()


def in_backward(tensor: Tensor, change: Change) -> Tensor:
    """Return the tensor, and apply `change` to its gradient."""
    changed = tensor.view_as(tensor)
    if changed.requires_grad:
        changed.register_hook(change)
    return changed


@dataclass(frozen=True)
class Changes:
    """Changes of one op's reference."""

    reference: Reference
    """It is called with keyword arguments only."""

    def call(self, change: Callable[[Call], Call]) -> Reference:
        """Return the reference, called with the arguments that `change` returns instead.

        For example, `call(lambda call: {"mask": ~call["mask"]})`.
        """
        return lambda **call: self.reference(**call | change(call))

    def given(self, **arguments: Any) -> Reference:
        """Return the reference with these arguments in place of a call's own."""
        return self.call(lambda call: arguments)

    def where(self, mistake: Reference, **options: Any) -> Reference:
        """Return the reference, but the mistake in calls with these options."""
        return lambda **call: (mistake if options.items() <= call.items() else self.reference)(
            **call
        )

    def arguments(self, change: Change, *names: str) -> Reference:
        """Return the reference with `change` applied to each named argument of a call."""
        return self.call(lambda call: {name: change(call[name]) for name in names if name in call})

    def gradients(self, change: Change, *names: str) -> Reference:
        """Return the reference with `change` applied to the gradient of each named argument."""
        return self.arguments(lambda argument: in_backward(argument, change), *names)

    def exchanged(self, *pairs: tuple[str, str]) -> Reference:
        """Return the reference where the two arguments of a pair get each other's gradient."""
        other = {**dict(pairs), **{second: first for first, second in pairs}}
        return self.call(
            lambda call: {name: with_gradient_of(call[name], call[other[name]]) for name in other}
        )

    def upstream(self, change: Change) -> Reference:
        """Return the reference with `change` applied to the upstream gradient."""
        return lambda **call: in_backward(self.reference(**call), change)

    def summing_over_all(self, *weights: str) -> Reference:
        """Return the reference where the gradients of these weights sum over all tokens."""

        def changed(x: Tensor, mask: Tensor, **values: Tensor) -> Tensor:
            output = self.reference(x=x, mask=mask, **values)
            values |= {name: values[name].detach() for name in values.keys() - {*weights}}
            others = self.reference(x=x.detach(), mask=~mask, **values)
            return with_gradient_of(output, output + others)

        return changed

    def of_upstream(self) -> dict[str, Reference]:
        """Return the mistakes with the upstream gradient, the same for every op."""
        return {
            "the upstream gradient is taken as ones": self.upstream(torch.ones_like),
            "each gradient has twice its value": self.upstream(lambda gradient: 2 * gradient),
        }

    def of_mask(self, visual: str, textual: str) -> dict[str, Reference]:
        """Return the mistakes with a mask, by the words for both weights."""
        return {
            "the mask is negated": self.arguments(torch.logical_not, "mask"),
            f"every token takes {visual}": self.arguments(torch.ones_like, "mask"),
            f"every token takes {textual}": self.arguments(torch.zeros_like, "mask"),
        }


def transposed(weight: Tensor) -> Tensor:
    """Return what a kernel reads, or writes, that exchanges the strides of a weight.

    Raises:
        NotImplementedError: The weight is not square, so that the kernel's code decides what is
            read.
    """
    if weight.shape[0] != weight.shape[1] and 1 not in weight.shape:
        raise NotImplementedError("the transpose has another shape")
    return weight.T.reshape(weight.shape)


def linear_in_tf32(x: Tensor, weight: Tensor) -> Tensor:
    """Return `linear(x, weight)` in tf32, in backward too; half types lose no precision."""
    factors = (with_gradient_of(to_tf32(each), each) for each in (x, weight))
    return in_backward(linear(*factors), to_tf32)


def to_tf32(values: Tensor) -> Tensor:
    """Clear the low 13 bits of float32 values, as a tensor core does."""
    bits = values.detach().float().contiguous().view(torch.int32) & ~0x1FFF
    return bits.view(torch.float32).to(values.dtype)
