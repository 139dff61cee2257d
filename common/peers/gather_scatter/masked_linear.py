"""Plain torch: the mask's rows gathered, one product for each weight, the rows scattered back."""

import torch
from torch.nn.functional import linear

from common.peers.gather_scatter.rows import Layer, by_mask


def masked_linear(
    x: torch.Tensor, w_v: torch.Tensor, w_t: torch.Tensor, mask: torch.Tensor
) -> torch.Tensor:
    def layer(weight: torch.Tensor) -> Layer:
        return lambda rows: linear(rows, weight)

    return by_mask(x, mask, len(w_v), layer(w_v), layer(w_t))
