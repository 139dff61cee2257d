"""Liger's fused mixture of experts, with two experts of which the mask is the router."""

from __future__ import annotations

import os
from collections.abc import Callable

import torch

# Its search compiles a hundred kernels for each new width, longer than an answer may take. Told so
# before it is imported, it keeps to one configuration for each; a 1 from outside lets it search.
os.environ.setdefault("LIGER_FUSED_MOE_AUTOTUNE", "0")

from liger_kernel.ops.fused_moe import LigerFusedMoEFunction


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
    """Not timed: stacking the weights, which its user holds stacked, and the mask as an expert's
    number with a weight of one, which a router hands over. Sorting the tokens is Liger's and timed.
    Its float32 products are tf32's, and the board says so.
    """
    up = torch.stack((torch.cat((u1, u3)), torch.cat((w1, w3))))
    down = torch.stack((u2, w2))
    expert = mask[:, None].int()
    certain = x.new_ones(expert.shape)
    return lambda: LigerFusedMoEFunction.apply(x, up, down, expert, certain)


def masked_ffn(
    x: torch.Tensor,
    w1: torch.Tensor,
    w2: torch.Tensor,
    w3: torch.Tensor,
    u1: torch.Tensor,
    u2: torch.Tensor,
    u3: torch.Tensor,
    mask: torch.Tensor,
) -> torch.Tensor:
    return prepare(x, w1, w2, w3, u1, u2, u3, mask)()
