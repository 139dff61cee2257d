"""Hugging Face's RoPE, eager; its cosines and sines untimed."""

from __future__ import annotations

from collections.abc import Callable

import torch
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from common.peers.angles import cos_and_sin


def prepare(
    q: torch.Tensor, k: torch.Tensor, freqs: torch.Tensor, *, tensor_format: str = "sbhd"
) -> Callable[[], tuple[torch.Tensor, ...]]:
    """Do the untimed part: make cosines and sines, which a model does once for all its layers.

    The library's models hold `[b, s, h, d]` in memory; plain torch takes q and k as they lie.

    Raises:
        NotImplementedError: The library does not take the case.
    """
    if freqs.shape[-1] != q.shape[-1]:
        raise NotImplementedError("a part of the features")
    # heads stand second in a model, for either format
    order, back = ((1, 2, 0, 3), (2, 0, 1, 3)) if tensor_format == "sbhd" else ((0, 2, 1, 3),) * 2
    queries, keys = q.permute(order), k.permute(order)
    halves = cos_and_sin(freqs[: queries.shape[2]], False, q.dtype)
    cos, sin = (torch.cat((half, half), dim=1)[None] for half in halves)

    def call() -> tuple[torch.Tensor, ...]:
        return tuple(t.permute(back) for t in apply_rotary_pos_emb(queries, keys, cos, sin))

    return call
