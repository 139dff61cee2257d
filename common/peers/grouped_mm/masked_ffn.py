"""torch's grouped_mm, thrice; sorting and scattering timed."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.nn.functional import silu

from common.peers.grouped_mm.groups import Groups, stacked


def prepare(
    x: torch.Tensor,
    w1: torch.Tensor,
    w2: torch.Tensor,
    w3: torch.Tensor,
    u1: torch.Tensor,
    u2: torch.Tensor,
    u3: torch.Tensor,
    mask: torch.Tensor,
) -> Callable[[], torch.Tensor]:
    """Stack the weights, untimed, and return the timed call."""
    gate, down, up = stacked(w1, u1), stacked(w2, u2), stacked(w3, u3)

    def call() -> torch.Tensor:
        groups = Groups.of(mask)
        rows = groups.gathered(x)
        inner = silu(groups.linear(rows, gate)) * groups.linear(rows, up)
        return groups.scattered(groups.linear(inner, down))

    return call
