"""Random tensors as users hold them: contiguous, or views that a careless kernel misreads."""

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
    """Draw normal values; the elements that lie between those of a view are random too.

    Args:
        shape: The shape of the result.
        dtype: The dtype's name in torch.
        layout: How the result lies in memory.

            * contiguous: as torch allocates it
            * strided: in rows longer than its own, as a slice of a packed projection
            * offset: contiguous, three elements past an aligned address
            * transposed: with the first two dimensions swapped
            * sparse: as every other element of the last dimension
        generator: The source of the values, and their device.
        scale: The values' standard deviation.
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
