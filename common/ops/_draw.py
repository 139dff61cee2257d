"""Inputs and an upstream gradient of one call, drawn from a seed without running the reference."""

from __future__ import annotations

from typing import Any

import torch

from common.ops._views import randn
from common.spec import Case, Op


def draw(op: Op[Any], case: Case, seed: int, device: str) -> tuple[dict[str, Any], torch.Tensor]:
    """Draw the arguments of one call and a random upstream gradient.

    The gradient has the output's shape and dtype, and the case's layout and special values for the
    upstream gradient.
    """
    generator = torch.Generator(device).manual_seed(seed)
    arguments = op.draw(case, generator)
    values = case.upstream_values
    shape = op.output(case)
    return arguments, randn(shape, case.dtype, case.upstream, generator, values=values)
