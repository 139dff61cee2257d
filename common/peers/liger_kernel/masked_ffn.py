"""Liger's fused MoE as installed, not tuned; the mask routes."""

from __future__ import annotations

import os
from collections.abc import Callable

import torch
from torch import Tensor

# Liger's search compiles a hundred kernels for each new width, longer than an answer may take. Set
# before the import, this keeps it to one configuration; set it to 1 outside to let Liger search.
os.environ.setdefault("LIGER_FUSED_MOE_AUTOTUNE", "0")

from liger_kernel.ops.fused_moe import LigerFusedMoEFunction


def prepare(
    x: Tensor, w1: Tensor, w2: Tensor, w3: Tensor, u1: Tensor, u2: Tensor, u3: Tensor, mask: Tensor
) -> Callable[[], Tensor]:
    """Do the untimed part: stack the weights, and turn the mask into a router's output.

    Liger's users hold the weights stacked, and a router gives them each token's expert with its
    weight, here 1. Sorting the tokens is Liger's own part and timed. Liger multiplies float32 in
    tf32, which fails the numeric rule.
    """
    up = torch.stack((torch.cat((u1, u3)), torch.cat((w1, w3))))
    down = torch.stack((u2, w2))
    expert = mask[:, None].int()
    certain = x.new_ones(expert.shape)
    return lambda: LigerFusedMoEFunction.apply(x, up, down, expert, certain)
