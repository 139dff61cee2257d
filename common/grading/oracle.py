"""The reference's results: in float64 (the oracle), and in the case's dtype (eager)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

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
    dims, differentiable = op.split, op.differentiable if gradients else ()
    shared = {name: value for name, value in arguments.items() if name not in dims}
    shared = leaves(shared, differentiable, torch.float64)
    sliced = [name for name in differentiable if name in dims]
    results = {
        name: torch.empty(like.shape, dtype=torch.float64, device=like.device)
        for name, like in ((OUTPUT, grad_output), *((name, arguments[name]) for name in sliced))
    }
    for piece in _pieces(op, shared, grad_output):
        own = {name: arguments[name].narrow(dim, *piece)
               for name, dim in dims.items() if name in arguments}  # fmt: skip
        inputs = shared | leaves(own, differentiable, torch.float64)
        output = op.reference(**inputs)
        results[OUTPUT].narrow(op.split[OUTPUT], *piece).copy_(output.detach())
        if differentiable:
            upstream = grad_output.narrow(op.split[OUTPUT], *piece).double()
            output.backward(upstream, inputs=[inputs[name] for name in differentiable])
        for name in sliced:
            results[name].narrow(dims[name], *piece).copy_(inputs[name].grad)
    return results | {name: shared[name].grad for name in differentiable if name not in dims}


def eager(
    op: Op[Any], arguments: dict[str, Any], grad_output: torch.Tensor, gradients: bool = True
) -> Results:
    """Return the reference's results in the arguments' dtype, computed in one piece."""
    # cuBLAS fails with "illegal memory access" if rows are 2^30 elements apart
    dense = {name: _contiguous(value) for name, value in arguments.items()}
    inputs = leaves(dense, op.differentiable if gradients else ())
    output = op.reference(**inputs)
    if not gradients:
        return {OUTPUT: output}
    differentiable = [inputs[name] for name in op.differentiable]
    grads = torch.autograd.grad(output, differentiable, _contiguous(grad_output))
    return {OUTPUT: output.detach(), **dict(zip(op.differentiable, grads, strict=True))}


def leaves(
    arguments: dict[str, Any], differentiable: Sequence[str], dtype: torch.dtype | None = None
) -> dict[str, Any]:
    """Return the arguments for a call that is differentiated, in a dtype, by default their own."""
    return {
        name: value.detach().to(dtype or value.dtype).requires_grad_(name in differentiable)
        if isinstance(value, torch.Tensor) and value.is_floating_point() else value
        for name, value in arguments.items()
    }  # fmt: skip


def _pieces(
    op: Op[Any], shared: dict[str, Any], grad_output: torch.Tensor
) -> Iterator[tuple[int, int]]:
    """Yield the start and the length of each piece along the split dimension of the output."""
    count = grad_output.shape[op.split[OUTPUT]]
    sizes = [
        size for value in shared.values() if isinstance(value, torch.Tensor) for size in value.shape
    ]
    slice_elements = max(grad_output.numel() // max(count, 1), *sizes, 1)
    length = max(PIECE // slice_elements, 1)
    for start in range(0, max(count, 1), length):
        yield start, min(length, count - start)


def _contiguous(value: Any) -> Any:
    """Return the value, or a contiguous copy of a tensor with elements that are gigabytes apart."""
    return value.contiguous() if isinstance(value, torch.Tensor) and is_far(value) else value
