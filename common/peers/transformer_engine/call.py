"""TransformerEngine's `apply_rotary_pos_emb`, for both peers."""

from typing import Any

import torch
from transformer_engine.pytorch.attention.rope import apply_rotary_pos_emb


def apply(t: torch.Tensor, freqs: torch.Tensor, fused: bool, options: Any) -> torch.Tensor:
    """Call it with the op's options, which are its own.

    Raises:
        NotImplementedError: It fails on an empty tensor, or, interleaved and unfused, on an empty
            packed sequence.
    """
    try:
        return apply_rotary_pos_emb(t, freqs, fused=fused, **options)  # type: ignore[no-any-return]
    except RuntimeError as error:
        if t.numel() and "tensor of 0 elements" not in str(error):
            raise
        raise NotImplementedError("an empty tensor or sequence") from error
