"""Plain torch: slices of one kind, or rows gathered by two lists."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from torch import Tensor
from torch.nn.functional import linear

from common.peers.gather_scatter.rows import by_mask


def prepare(x: Tensor, w_v: Tensor, w_t: Tensor, mask: Tensor) -> Callable[[], Tensor]:
    """Do the untimed part: find the rows of each kind, as a collator does for a batch."""
    return by_mask(x, mask, partial(linear, weight=w_v), partial(linear, weight=w_t))
