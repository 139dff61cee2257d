"""The reference's results: in float64 (the oracle), and in the case's dtype (eager)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from common import gradients as derivatives
from common.arena import is_far
from common.spec import Op
from common.wire import OUTPUT

PIECE = 1 << 22
"""The most elements of the output, or of an intermediate tensor, in one piece of the oracle."""
Results = dict[str, torch.Tensor]
"""The output and the gradients, by name."""


def truth(
    op: Op[Any], arguments: dict[str, Any], grad_output: torch.Tensor, gradients: bool = True
) -> Results:
    """Return the oracle: the reference's results in float64.

    The slices along `op.split` are computed a few at a time, to save memory. The gradient of an
    argument that all slices share is the sum of their gradients.

    Args:
        op: The op.
        arguments: The arguments of one call; all floating-point tensors are converted to float64,
            including rope's freqs.
        grad_output: The gradient of the output.
        gradients: Whether to compute the gradients; without them the work is a third.
    """
    split = op.split.arguments
    differentiable = op.differentiable if gradients else ()
    shared = {
        name: _double(value, name in differentiable)
        for name, value in arguments.items()
        if name not in split
    }
    results = {OUTPUT: _empty_double(grad_output)}
    results |= {name: _empty_double(arguments[name]) for name in differentiable if name in split}
    for piece in _pieces(op, shared, grad_output):
        own = {name: _double(arguments[name].narrow(dim, *piece), name in differentiable)
               for name, dim in split.items() if name in arguments}  # fmt: skip
        inputs = shared | own
        output = op.reference(**inputs)
        results[OUTPUT].narrow(op.split.output, *piece).copy_(output.detach())
        if differentiable:
            upstream = grad_output.narrow(op.split.output, *piece).double()
            output.backward(upstream, inputs=[inputs[name] for name in differentiable])
        for name in differentiable:
            if name in split:
                results[name].narrow(split[name], *piece).copy_(own[name].grad)
    return results | {name: shared[name].grad for name in differentiable if name not in split}


def eager(
    op: Op[Any], arguments: dict[str, Any], grad_output: torch.Tensor, gradients: bool = True
) -> Results:
    """Return the reference's results in the arguments' dtype, computed in one piece."""
    # cuBLAS fails with "illegal memory access" if rows are 2^30 elements apart
    inputs = {
        name: _contiguous(value).detach().requires_grad_(gradients and name in op.differentiable)
        if _is_float(value) else value
        for name, value in arguments.items()
    }  # fmt: skip
    output = op.reference(**inputs)
    if not gradients:
        return {OUTPUT: output}
    differentiable = [inputs[name] for name in op.differentiable]
    grads = torch.autograd.grad(output, differentiable, _contiguous(grad_output))
    return {OUTPUT: output.detach(), **dict(zip(op.differentiable, grads, strict=True))}


def second_derivatives(
    op: Op[Any],
    arguments: dict[str, Any],
    grad_output: torch.Tensor,
    constant: bool,
    dtype: torch.dtype | None = None,
) -> Results:
    """Return the reference's second derivatives in a dtype, by default the arguments'."""
    inputs = {
        name: value.detach().to(dtype or value.dtype).requires_grad_(name in op.differentiable)
        if _is_float(value) else value
        for name, value in arguments.items()
    }  # fmt: skip
    output, wanted = op.reference(**inputs), [inputs[name] for name in op.differentiable]
    weight = grad_output.to(output.dtype)
    second = derivatives.second_derivatives(output, wanted, weight, constant)
    return dict(zip(op.differentiable, second, strict=True))


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


def _double(value: Any, differentiable: bool) -> Any:
    return value.detach().double().requires_grad_(differentiable) if _is_float(value) else value


def _empty_double(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty(tensor.shape, dtype=torch.float64, device=tensor.device)


def _contiguous(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor, or a contiguous copy if its elements are gigabytes apart."""
    return tensor.contiguous() if is_far(tensor) else tensor
