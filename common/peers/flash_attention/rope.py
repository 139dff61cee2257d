"""flash-attention's Triton rotary, on t as it lies."""

from __future__ import annotations

import importlib.util
import sys
import types
from collections.abc import Callable

import torch

from common.peers.angles import cos_and_sin

# the package itself imports its CUDA extension, which its rotary does not use
if "flash_attn" not in sys.modules:
    _found = importlib.util.find_spec("flash_attn")
    _package = types.ModuleType("flash_attn")
    _package.__path__ = list((_found and _found.submodule_search_locations) or ())
    sys.modules["flash_attn"] = _package

from flash_attn.layers.rotary import apply_rotary_emb

WIDEST = 256


def prepare(
    t: torch.Tensor, freqs: torch.Tensor, *, tensor_format: str = "sbhd", interleaved: bool = False,
    start_positions: torch.Tensor | None = None, cu_seqlens: torch.Tensor | None = None,
) -> Callable[[], torch.Tensor]:  # fmt: skip
    """Do the untimed part: make cosines and sines, and a dense cu_seqlens.

    A model makes cosines and sines once for all its layers. The kernel reads any strides, by
    offsets of 32 bits, which fail in a case whose elements lie further apart. The library's users
    know the longest packed sequence; here freqs bound it.

    Raises:
        NotImplementedError: The library does not take the case.
    """
    if t.shape[-1] > WIDEST:
        raise NotImplementedError(f"{t.shape[-1]} features in a head, more than {WIDEST}")
    x = t.transpose(0, 1) if tensor_format == "sbhd" else t
    cos, sin = cos_and_sin(freqs, interleaved, t.dtype)
    ends = None if cu_seqlens is None else cu_seqlens.contiguous()
    longest = None if ends is None else min(len(t), len(freqs))
    offsets: int | torch.Tensor = 0 if start_positions is None else start_positions

    def call() -> torch.Tensor:
        turned: torch.Tensor = apply_rotary_emb(
            x, cos, sin, interleaved, seqlen_offsets=offsets, cu_seqlens=ends, max_seqlen=longest
        )
        return turned.transpose(0, 1) if tensor_format == "sbhd" else turned

    return call
