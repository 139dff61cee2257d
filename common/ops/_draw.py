"""Inputs and an upstream gradient of one call, drawn from a seed; no reference runs for that."""

from __future__ import annotations

from typing import Any

import torch

from common.spec import Case, Op


def draw(op: Op[Any], case: Case, seed: int, device: str) -> tuple[dict[str, Any], torch.Tensor]:
    """Draw the arguments of one call and a random upstream gradient.

    The gradient has the output's shape and dtype. Where an argument is a view that is not
    contiguous, the gradient is one too, with its dimensions reversed in memory.
    """
    generator = torch.Generator(device).manual_seed(seed)
    arguments = op.draw(case, generator)
    shape = op.output(case)
    drawn = torch.randn(shape[::-1], generator=generator, device=device, dtype=torch.float32)
    upstream = drawn.to(getattr(torch, case.dtype)).permute(*reversed(range(len(shape))))
    views = not all(t.is_contiguous() for t in arguments.values() if isinstance(t, torch.Tensor))
    return arguments, upstream if views else upstream.contiguous()
