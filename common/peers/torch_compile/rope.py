"""torch.compile on the reference: static shapes, one graph."""

from typing import Any

import torch

from common.ops.rope import reference
from common.peers.torch_compile.compiled import fresh

_call = fresh(reference)


def rope(t: torch.Tensor, freqs: torch.Tensor, **options: Any) -> torch.Tensor:
    """Call the compiled reference."""
    return _call(t=t, freqs=freqs, **options)
