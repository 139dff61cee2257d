"""The reference's results: in float64, piece by piece, and in the case's dtype, as a whole."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from common.arena import is_far
from common.spec import Op
from common.wire import OUTPUT

PIECE = 1 << 22
"""The elements of the output, or of any tensor on the way to it, in one piece of the oracle."""
Results = dict[str, torch.Tensor]
"""The output and the gradients, by name."""


def truth(
    op: Op[Any], arguments: dict[str, Any], grad_output: torch.Tensor, gradients: bool = True
) -> Results:
    """Return the reference's results in float64: that is the oracle.

    The slices along `op.split` are computed a few at a time, so that little memory is taken beyond
    the results; a gradient of an argument that all slices share is the sum of theirs.

    Args:
        op: The op.
        arguments: The arguments of one call; every floating-point one is taken in float64, rope's
            freqs too.
        grad_output: The gradient of the output.
        gradients: Compute them too; without, the output alone costs a third of the work.
    """
    split = op.split.arguments
    wanted = op.differentiable if gradients else ()
    shared = {
        name: _double(value, name in wanted)
        for name, value in arguments.items()
        if name not in split
    }
    results = {OUTPUT: _like(grad_output)}
    results |= {name: _like(arguments[name]) for name in wanted if name in split}
    for place in _pieces(op, shared, grad_output):
        ours = {name: _double(arguments[name].narrow(dim, *place), name in wanted)
                for name, dim in split.items() if name in arguments}  # fmt: skip
        ready = shared | ours
        output = op.reference(**ready)
        results[OUTPUT].narrow(op.split.output, *place).copy_(output.detach())
        if wanted:
            above = grad_output.narrow(op.split.output, *place).double()
            output.backward(above, inputs=[ready[name] for name in wanted])
        for name in wanted:
            if name in split:
                results[name].narrow(split[name], *place).copy_(ours[name].grad)
    return results | {name: shared[name].grad for name in wanted if name not in split}


def eager(
    op: Op[Any], arguments: dict[str, Any], grad_output: torch.Tensor, gradients: bool = True
) -> Results:
    """Return the reference's results in the arguments' own dtype, computed at once."""
    # cuBLAS leaves its memory where rows lie 2^30 elements apart: "illegal memory access"
    ready = {
        name: _gathered(value).detach().requires_grad_(gradients and name in op.differentiable)
        if _is_float(value) else value
        for name, value in arguments.items()
    }  # fmt: skip
    output = op.reference(**ready)
    if not gradients:
        return {OUTPUT: output}
    wanted = [ready[name] for name in op.differentiable]
    found = torch.autograd.grad(output, wanted, _gathered(grad_output))
    return {OUTPUT: output.detach(), **dict(zip(op.differentiable, found, strict=True))}


def _pieces(
    op: Op[Any], shared: dict[str, Any], grad_output: torch.Tensor
) -> Iterator[tuple[int, int]]:
    """Yield the start and the length of each piece along the split dimension of the output."""
    count = grad_output.shape[op.split.output]
    sizes = [
        size for value in shared.values() if isinstance(value, torch.Tensor) for size in value.shape
    ]
    slice_elements = max(grad_output.numel() // max(count, 1), *sizes, 1)
    length = max(PIECE // slice_elements, 1)
    for start in range(0, max(count, 1), length):
        yield start, min(length, count - start)


def _is_float(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def _double(value: Any, wanted: bool) -> Any:
    return value.detach().double().requires_grad_(wanted) if _is_float(value) else value


def _like(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty(tensor.shape, dtype=torch.float64, device=tensor.device)


def _gathered(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor, or its elements side by side where they lie gigabytes apart."""
    return tensor.contiguous() if is_far(tensor) else tensor
