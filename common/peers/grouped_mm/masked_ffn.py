"""torch's grouped_mm, thrice; sorting and scattering timed."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor
from torch.nn.functional import silu

from common.peers.grouped_mm.groups import Groups, stacked


def prepare(
    x: Tensor, w1: Tensor, w2: Tensor, w3: Tensor, u1: Tensor, u2: Tensor, u3: Tensor, mask: Tensor
) -> Callable[[], Tensor]:
    """Stack the weights, untimed, and return the timed call."""
    gate, down, up = stacked(w1, u1), stacked(w2, u2), stacked(w3, u3)

    def call() -> Tensor:
        groups = Groups.of(mask)
        rows = groups.gathered(x)
        inner = silu(groups.linear(rows, gate)) * groups.linear(rows, up)
        return groups.scattered(groups.linear(inner, down))

    return call
