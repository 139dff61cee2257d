"""Hugging Face's RoPE, eager; its cosines and sines untimed."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from common.peers.angles import of_whole_heads


def prepare(
    q: torch.Tensor, k: torch.Tensor, freqs: torch.Tensor, *, tensor_format: str = "sbhd"
) -> Callable[[], tuple[torch.Tensor, ...]]:
    """Do the untimed part: make cosines and sines, which a model does once for all its layers."""
    cos, sin = of_whole_heads(q, freqs, tensor_format)
    return functools.partial(apply_rotary_pos_emb, q, k, cos, sin, unsqueeze_dim=2)
