"""Plain torch: gather rows, a product for each set, scatter."""

import torch
from torch.nn.functional import linear

from common.peers.gather_scatter.rows import Layer, by_mask


def masked_linear(
    x: torch.Tensor, w_v: torch.Tensor, w_t: torch.Tensor, mask: torch.Tensor
) -> torch.Tensor:
    """Multiply each group of rows with its own weight."""

    def layer(weight: torch.Tensor) -> Layer:
        return lambda rows: linear(rows, weight)

    return by_mask(x, mask, len(w_v), layer(w_v), layer(w_t))
