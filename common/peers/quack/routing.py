"""quack's products over tokens sorted by the mask, in configurations that quack's search found.

Nothing is searched here, since that compiles for longer than an answer may take.
"""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import torch
from quack import gemm_interface
from quack.autotuner import VERSION, AutotuneConfig, Autotuner
from quack.gemm_config import GemmConfig, default_config

from common.peers.grouped_mm.groups import Groups

KEPT = json.loads((Path(__file__).parent / "configs" / "tuned.json").read_text())
MULTIPLE = 8

gemm = gemm_interface.gemm
gemm_gated = functools.partial(gemm_interface.gemm_gated, activation="swiglu")
gemm_dgated = functools.partial(gemm_interface.gemm_dgated, activation="swiglu")


def _choose(tuner: Any, key: Any, *_: Any) -> None:
    """Take what is kept for a product's name and tensors, or the default, as with `tuned=False`."""
    here = KEPT.get(f"{torch.cuda.get_device_name()}, quack-kernels {VERSION}", {})
    found = here.get(f"{tuner.fn.__name__.rpartition('_')[0]}{key[len(tuner.keys) :]}")
    config = GemmConfig(**found) if found else default_config(torch.device("cuda"))
    tuner.cache[key] = AutotuneConfig(config=config)


Autotuner.check_disk_cache = _choose  # quack calls it for a product that is new to the process


class Routing(Groups):
    """The groups as quack takes them."""

    @functools.cached_property
    def index(self) -> torch.Tensor:
        """The order in int32."""
        return self.order.int()

    @functools.cached_property
    def starts(self) -> torch.Tensor:
        """The bounds of the groups, int32 `[3]`."""
        return torch.nn.functional.pad(self.ends, (1, 0))


def readable(*tensors: torch.Tensor) -> list[torch.Tensor]:
    """Return tensors that quack can read: contiguous and aligned, copied where necessary.

    Raises:
        NotImplementedError: There is no GPU, a tensor is in float32, or a width is not a multiple
            of 8.
    """
    for tensor in tensors:
        if not tensor.is_cuda:
            raise NotImplementedError("needs a GPU")
        if tensor.dtype is torch.float32:
            raise NotImplementedError("float32")
        if any(size % MULTIPLE for size in tensor.shape[1:]):
            raise NotImplementedError(f"widths that are no multiple of {MULTIPLE}")
    contiguous = (tensor.contiguous() for tensor in tensors)
    return [tensor if tensor.data_ptr() % 16 == 0 else tensor.clone() for tensor in contiguous]
