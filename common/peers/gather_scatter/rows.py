"""Rows gathered by the mask, sent through a layer, scattered."""

from __future__ import annotations

from collections.abc import Callable

import torch

Layer = Callable[[torch.Tensor], torch.Tensor]


def by_mask(
    x: torch.Tensor, mask: torch.Tensor, width: int, visual: Layer, textual: Layer
) -> torch.Tensor:
    """Return `[tokens, width]`: `visual` of the rows in the mask, `textual` of the others.

    Only the GPU knows the number of rows in each group, so the host waits for it twice.
    """
    output = x.new_empty(len(x), width)
    for layer, chosen in ((visual, mask), (textual, ~mask)):
        rows = chosen.nonzero().squeeze(1)
        output.index_copy_(0, rows, layer(x.index_select(0, rows)))
    return output
