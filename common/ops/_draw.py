"""Inputs of one call, drawn from a seed; no oracle is needed for that."""

from __future__ import annotations

from typing import Any

import torch

from common.spec import Case, Op


def draw(op: Op[Any], case: Case, seed: int, device: str) -> tuple[dict[str, Any], torch.Tensor]:
    """The arguments of one call and a random upstream gradient, which is as much a view as they."""
    generator = torch.Generator(device).manual_seed(seed)
    arguments = op.draw(case, generator)
    with torch.no_grad():
        output = op.reference(**arguments)
    upstream = torch.randn(
        output.shape[::-1], generator=generator, device=device, dtype=torch.float32
    ).to(output.dtype)
    upstream = upstream.permute(*reversed(range(output.dim())))
    views = not all(t.is_contiguous() for t in arguments.values() if isinstance(t, torch.Tensor))
    return arguments, upstream if views else upstream.contiguous()
