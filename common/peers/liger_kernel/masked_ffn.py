"""Liger's fused MoE, tuned where docs/peers.md says so; the mask routes."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
import triton
from torch import Tensor

# Liger's search compiles 240 kernels for each new width, longer than an answer may take. Set before
# the import, this keeps it to one configuration; set it to 1 outside to let Liger search.
os.environ.setdefault("LIGER_FUSED_MOE_AUTOTUNE", "0")

from liger_kernel.ops import fused_moe_kernels
from liger_kernel.ops.fused_moe import LigerFusedMoEFunction

KEPT = json.loads((Path(__file__).parent / "configs" / "tuned.json").read_text())


def _choose(tuner: Any, key: Any, installed: Any, _: Any) -> bool:
    """Take what is kept for a kernel, its widths and dtypes, or what is installed."""
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else ""
    here = KEPT.get(f"{device}, liger-kernel {version('liger-kernel')}", {})
    found = here.get(f"{tuner.base_fn.__name__}{key}")
    tuner.cache[key] = triton.Config(**found) if found else installed[0]
    return True


for _tuner in vars(fused_moe_kernels).values():
    if len(getattr(_tuner, "configs", ())) == 1:
        # with a single configuration, Triton would not call `check_disk_cache`
        _tuner.configs, _tuner.cache_results = _tuner.configs * 2, True
        _tuner.check_disk_cache = functools.partial(_choose, _tuner)


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
