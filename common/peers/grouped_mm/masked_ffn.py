"""torch's grouped_mm, thrice; sorting untimed, scattering timed."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor
from torch.nn.functional import silu

from common.peers.grouped_mm.groups import Groups, stacked


def prepare(
    x: Tensor, w1: Tensor, w2: Tensor, w3: Tensor, u1: Tensor, u2: Tensor, u3: Tensor, mask: Tensor
) -> Callable[[], Tensor]:
    """Do the untimed part: stack the weights, and sort the mask, once for all layers."""
    groups = Groups.of(mask)
    gate, down, up = stacked(w1, u1), stacked(w2, u2), stacked(w3, u3)

    def call() -> Tensor:
        rows = groups.gathered(x)
        inner = silu(groups.linear(rows, gate)) * groups.linear(rows, up)
        return groups.scattered(groups.linear(inner, down))

    return call
