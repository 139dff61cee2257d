"""Tensors as users hold them: contiguous, or views that a careless kernel misreads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch

Layout = Literal["contiguous", "strided", "offset", "transposed", "sparse"]


def randn(
    shape: Sequence[int],
    dtype: str,
    layout: Layout,
    generator: torch.Generator,
    scale: float = 1.0,
) -> torch.Tensor:
    """Normal values of the given shape; whatever lies between a view's elements is random too.

    strided     rows longer than the view (a slice of a packed projection)
    offset      contiguous, but three elements past an aligned address
    transposed  the first two dimensions swapped in memory
    sparse      every other element of the last dimension
    """

    def fresh(*sizes: int) -> torch.Tensor:
        drawn = torch.randn(sizes, generator=generator, device=generator.device)
        return drawn.mul_(scale).to(getattr(torch, dtype))

    *rows, width = shape
    if layout == "strided":
        return fresh(*rows, width + 5)[..., 2 : 2 + width]
    if layout == "offset":
        return fresh(torch.Size(shape).numel() + 3)[3:].view(*shape)
    if layout == "transposed":
        first, second, *rest = shape
        return fresh(second, first, *rest).transpose(0, 1)
    if layout == "sparse":
        return fresh(*rows, 2 * width)[..., ::2]
    return fresh(*shape)
