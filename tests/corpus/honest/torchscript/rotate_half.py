"""Its function is TorchScript, which has a schema in place of a Python signature.

Expected: forward=PASSED backward=PASSED
"""

import torch


@torch.jit.script
def rotate_half(x: torch.Tensor, interleaved: bool = False) -> torch.Tensor:
    if interleaved:
        return torch.stack((-x[..., 1::2], x[..., ::2]), -1).reshape(x.shape)
    a, b = x.chunk(2, -1)
    return torch.cat((-b, a), -1)
