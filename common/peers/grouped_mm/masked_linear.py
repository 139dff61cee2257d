"""torch's grouped_mm; sorting and scattering timed."""

from __future__ import annotations

from collections.abc import Callable

import torch

from common.peers.grouped_mm.groups import Groups, stacked


def prepare(
    x: torch.Tensor, w_v: torch.Tensor, w_t: torch.Tensor, mask: torch.Tensor
) -> Callable[[], torch.Tensor]:
    """Stack the weights, untimed, and return the timed call."""
    weights = stacked(w_v, w_t)

    def call() -> torch.Tensor:
        groups = Groups.of(mask)
        return groups.scattered(groups.linear(groups.gathered(x), weights))

    return call
