"""TransformerEngine, fused=True: one CUDA kernel each way."""

from typing import Any

import torch

from common.peers.transformer_engine.call import apply


def rope(t: torch.Tensor, freqs: torch.Tensor, **options: Any) -> torch.Tensor:
    """Call TransformerEngine's kernel."""
    return apply(t, freqs, True, options)
