"""Each token through the layer that the mask names: rows gathered, and scattered back."""

from __future__ import annotations

from collections.abc import Callable

import torch

Layer = Callable[[torch.Tensor], torch.Tensor]


def by_mask(
    x: torch.Tensor, mask: torch.Tensor, width: int, visual: Layer, textual: Layer
) -> torch.Tensor:
    """`[tokens, width]`: `visual` of the rows that the mask holds for, `textual` of the others.

    How many rows there are is known to the GPU alone, so that the host waits for it, twice.
    """
    output = x.new_empty(len(x), width)
    for layer, chosen in ((visual, mask), (textual, ~mask)):
        rows = chosen.nonzero().squeeze(1)
        output.index_copy_(0, rows, layer(x.index_select(0, rows)))
    return output
