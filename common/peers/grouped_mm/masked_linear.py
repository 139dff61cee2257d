"""torch's grouped_mm; sorting and scattering timed."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from common.peers.grouped_mm.groups import Groups, stacked


def prepare(x: Tensor, w_v: Tensor, w_t: Tensor, mask: Tensor) -> Callable[[], Tensor]:
    """Stack the weights, untimed, and return the timed call."""
    weights = stacked(w_v, w_t)

    def call() -> Tensor:
        groups = Groups.of(mask)
        return groups.scattered(groups.linear(groups.gathered(x), weights))

    return call
