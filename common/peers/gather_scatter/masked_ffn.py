"""Plain torch: slices of one kind, or rows gathered by two lists."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor
from torch.nn.functional import linear, silu

from common.peers.gather_scatter.rows import by_mask


def prepare(
    x: Tensor, w1: Tensor, w2: Tensor, w3: Tensor, u1: Tensor, u2: Tensor, u3: Tensor, mask: Tensor
) -> Callable[[], Tensor]:
    """Do the untimed part: find the rows of each kind, as a collator does for a batch."""
    return by_mask(
        x,
        mask,
        lambda rows: linear(silu(linear(rows, w1)) * linear(rows, w3), w2),
        lambda rows: linear(silu(linear(rows, u1)) * linear(rows, u3), u2),
    )
