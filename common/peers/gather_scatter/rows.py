"""The rows of each kind of token, sent through a layer of their own."""

from __future__ import annotations

from collections.abc import Callable

import torch

Layer = Callable[[torch.Tensor], torch.Tensor]
MOST = 4
"""The most slices of one kind that are multiplied each by itself: autograd rounds the sum of a
weight's gradients after each slice, and eight slices in bfloat16 were beyond the tolerance."""


def by_mask(
    x: torch.Tensor, mask: torch.Tensor, visual: Layer, textual: Layer
) -> Callable[[], torch.Tensor]:
    """Return a call: `visual` of the rows in the mask, `textual` of the others.

    What follows from the mask is found here. Slices of one kind need no gather; where there are
    too many, two lists of rows gather them, and scatter the results.
    """
    kinds, sizes = mask.unique_consecutive(return_counts=True)
    if 1 < len(sizes) <= MOST:  # of both kinds, so that each weight gets a gradient
        lengths, layers = sizes.tolist(), [visual if kind else textual for kind in kinds.tolist()]
        return lambda: torch.cat(
            [layer(rows) for layer, rows in zip(layers, x.split(lengths), strict=True)]
        )
    order = mask.argsort(descending=True, stable=True)
    first, back = int(mask.sum()), order.argsort()

    def call() -> torch.Tensor:
        rows = x.index_select(0, order)
        return torch.cat((visual(rows[:first]), textual(rows[first:]))).index_select(0, back)

    return call
