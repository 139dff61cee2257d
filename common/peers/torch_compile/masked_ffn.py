"""torch.compile on the reference: static shapes, one graph."""

import torch

from common.ops.masked_ffn import reference
from common.peers.torch_compile.compiled import fresh

_call = fresh(reference)


def masked_ffn(
    x: torch.Tensor,
    w1: torch.Tensor,
    w2: torch.Tensor,
    w3: torch.Tensor,
    u1: torch.Tensor,
    u2: torch.Tensor,
    u3: torch.Tensor,
    mask: torch.Tensor,
) -> torch.Tensor:
    """Call the compiled reference."""
    return _call(x=x, w1=w1, w2=w2, w3=w3, u1=u1, u2=u2, u3=u3, mask=mask)
