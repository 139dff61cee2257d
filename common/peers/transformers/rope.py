"""Hugging Face's RoPE, eager; its cosines and sines untimed."""

from __future__ import annotations

from collections.abc import Callable

import torch
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from common.peers.angles import cos_and_sin


def prepare(
    t: torch.Tensor,
    freqs: torch.Tensor,
    *,
    tensor_format: str = "sbhd",
    start_positions: torch.Tensor | None = None,
) -> Callable[[], torch.Tensor]:
    """Do the untimed part: make cosines and sines, which a model does once for all its layers.

    The library's models hold `[b, s, h, d]` in memory; plain torch takes t as it lies. Queries and
    keys turn together, so one unused head of keys goes with every call and is timed too.

    Raises:
        NotImplementedError: The library does not take the case.
    """
    if tensor_format == "thd":
        raise NotImplementedError("thd")
    if freqs.shape[-1] != t.shape[-1]:
        raise NotImplementedError("a part of the features")
    batch_first = t.transpose(0, 1) if tensor_format == "sbhd" else t
    queries = batch_first.transpose(1, 2)  # the shape in a model: [b, h, s, d]
    batch, _, length, width = queries.shape
    keys = queries.new_zeros(batch, 1, length, width)
    position = torch.arange(length, device=t.device)[None]
    if start_positions is not None:
        position = position + start_positions[:, None]
    halves = cos_and_sin(freqs, False, t.dtype)
    cos, sin = (torch.cat((half, half), dim=1)[position] for half in halves)

    def call() -> torch.Tensor:
        turned: torch.Tensor = apply_rotary_pos_emb(queries, keys, cos, sin)[0].transpose(1, 2)
        return turned.transpose(0, 1) if tensor_format == "sbhd" else turned

    return call
