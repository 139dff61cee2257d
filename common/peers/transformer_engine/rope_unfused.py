"""TransformerEngine, fused=False: plain torch, eager."""

from typing import Any

import torch

from common.peers.transformer_engine.call import apply


def rope(t: torch.Tensor, freqs: torch.Tensor, **options: Any) -> torch.Tensor:
    """Call TransformerEngine's plain code."""
    return apply(t, freqs, False, options)
