"""The call of TransformerEngine's `apply_rotary_pos_emb`, which both of its peers make."""

from typing import Any

import torch
from transformer_engine.pytorch.attention.rope import apply_rotary_pos_emb


def apply(t: torch.Tensor, freqs: torch.Tensor, fused: bool, options: Any) -> torch.Tensor:
    """Its options are the op's. It has no path for what is empty, and fails on some of that: the
    kernel on a tensor, the interleaved plain code on a packed sequence."""
    try:
        return apply_rotary_pos_emb(t, freqs, fused=fused, **options)  # type: ignore[no-any-return]
    except RuntimeError as error:
        if t.numel() and "tensor of 0 elements" not in str(error):
            raise
        raise NotImplementedError("an empty tensor or sequence") from error
