"""torch's grouped_mm; sorting untimed, scattering timed."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from common.peers.grouped_mm.groups import Groups, stacked


def prepare(x: Tensor, w_v: Tensor, w_t: Tensor, mask: Tensor) -> Callable[[], Tensor]:
    """Do the untimed part: stack the weights, and sort the mask, once for all layers."""
    weights, groups = stacked(w_v, w_t), Groups.of(mask)

    def call() -> Tensor:
        return groups.scattered(groups.linear(groups.gathered(x), weights))

    return call
