"""torch's grouped product over tokens sorted by the mask; sorting and scattering included."""

from __future__ import annotations

from collections.abc import Callable

import torch

from common.peers.grouped_mm.groups import Groups, stacked


def prepare(
    x: torch.Tensor, w_v: torch.Tensor, w_t: torch.Tensor, mask: torch.Tensor
) -> Callable[[], torch.Tensor]:
    """Not timed: stacking the weights."""
    weights = stacked(w_v, w_t)

    def call() -> torch.Tensor:
        groups = Groups.of(mask)
        return groups.scattered(groups.linear(groups.gathered(x), weights))

    return call


def masked_linear(
    x: torch.Tensor, w_v: torch.Tensor, w_t: torch.Tensor, mask: torch.Tensor
) -> torch.Tensor:
    return prepare(x, w_v, w_t, mask)()
