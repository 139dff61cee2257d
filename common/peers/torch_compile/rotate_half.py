"""torch.compile on the reference: static shapes, one graph."""

from typing import Any

import torch

from common.ops.rotate_half import reference
from common.peers.torch_compile.compiled import fresh

_call = fresh(reference)


def rotate_half(x: torch.Tensor, **options: Any) -> torch.Tensor:
    """Call the compiled reference."""
    return _call(x=x, **options)
