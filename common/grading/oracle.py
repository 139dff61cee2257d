"""The reference's results: in float64 (the oracle), and in the case's dtype (eager)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from common.arena import is_far
from common.gradients import outputs_of
from common.spec import Op, is_output, upstream_of

PIECE = 1 << 22
"""The most elements of the output, or of an intermediate tensor, in one piece of the oracle."""
Upstream = Mapping[str, torch.Tensor]
"""The upstream gradient of each output, in their order."""
Results = dict[str, torch.Tensor]
"""The outputs and the gradients, by name."""


def truth(
    op: Op[Any], arguments: dict[str, Any], upstream: Upstream, gradients: bool = True
) -> Results:
    """Return the oracle: the reference's results in float64.

    The slices along `op.split` are computed a few at a time, to save memory. The gradient of an
    argument that all slices share is the sum of their gradients. All floating-point arguments are
    converted, including rope's freqs. Without the gradients the work is a third.
    """
    dims, differentiable = op.split, op.differentiable if gradients else ()
    shared = {name: value for name, value in arguments.items() if name not in dims}
    shared = leaves(shared, differentiable, torch.float64)
    sliced = [name for name in differentiable if name in dims]
    gradient_of = {name: upstream[upstream_of(name)] for name in dims if is_output(name)}
    results = {
        name: torch.empty(like.shape, dtype=torch.float64, device=like.device)
        for name, like in (*gradient_of.items(), *((name, arguments[name]) for name in sliced))
    }
    pieces = _pieces(shared, *((each, dims[name]) for name, each in gradient_of.items()))
    for index in range(pieces):

        def piece(name: str, tensor: torch.Tensor, index: int = index) -> torch.Tensor:
            size = tensor.shape[dims[name]]
            start, end = index * size // pieces, (index + 1) * size // pieces
            return tensor.narrow(dims[name], start, end - start)

        own = {name: piece(name, arguments[name]) for name in dims if name in arguments}
        inputs = shared | leaves(own, differentiable, torch.float64)
        outputs = dict(zip(gradient_of, outputs_of(op.reference(**inputs)), strict=True))
        for name, output in outputs.items():
            piece(name, results[name]).copy_(output.detach())
        if differentiable:
            weights = [piece(name, each).double() for name, each in gradient_of.items()]
            wanted = [inputs[name] for name in differentiable]
            torch.autograd.backward([*outputs.values()], weights, inputs=wanted)
        for name in sliced:
            piece(name, results[name]).copy_(inputs[name].grad)
    return results | {name: shared[name].grad for name in differentiable if name not in dims}


def eager(
    op: Op[Any], arguments: dict[str, Any], upstream: Upstream, gradients: bool = True
) -> Results:
    """Return the reference's results in the arguments' dtype, computed in one piece."""
    # cuBLAS fails with "illegal memory access" if rows are 2^30 elements apart
    dense = {name: _contiguous(value) for name, value in arguments.items()}
    inputs = leaves(dense, op.differentiable if gradients else ())
    outputs = outputs_of(op.reference(**inputs))
    names = [name for name in op.split if is_output(name)]
    results = {name: output.detach() for name, output in zip(names, outputs, strict=True)}
    if not gradients:
        return results
    differentiable = [inputs[name] for name in op.differentiable]
    grads = torch.autograd.grad(outputs, differentiable, [*map(_contiguous, upstream.values())])
    return {**results, **dict(zip(op.differentiable, grads, strict=True))}


def leaves(
    arguments: dict[str, Any], differentiable: Sequence[str], dtype: torch.dtype | None = None
) -> dict[str, Any]:
    """Return the arguments for a call that is differentiated, in a dtype, by default their own."""
    return {
        name: value.detach().to(dtype or value.dtype).requires_grad_(name in differentiable)
        if isinstance(value, torch.Tensor) and value.is_floating_point() else value
        for name, value in arguments.items()
    }  # fmt: skip


def _pieces(shared: dict[str, Any], *split: tuple[torch.Tensor, int]) -> int:
    """Return the number of pieces along the split dimension of the outputs; each may have its own.

    Of 32 heads of queries and 8 of keys, for example, one in four pieces has 8 and 2.
    """
    sizes = [
        size for value in shared.values() if isinstance(value, torch.Tensor) for size in value.shape
    ]
    pieces = 1
    for tensor, dim in split:
        count = tensor.shape[dim]
        slice_elements = max(tensor.numel() // max(count, 1), *sizes, 1)
        pieces = max(pieces, -(-count // max(PIECE // slice_elements, 1)))
    return pieces


def _contiguous(value: Any) -> Any:
    """Return the value, or a contiguous copy of a tensor with elements that are gigabytes apart."""
    return value.contiguous() if isinstance(value, torch.Tensor) and is_far(value) else value
