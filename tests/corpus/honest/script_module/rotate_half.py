"""The op is a scripted module, whose forward alone has a schema.

Expected: forward=PASSED backward=PASSED
"""

import torch


class _RotateHalf(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a, b = x.chunk(2, -1)
        return torch.cat((-b, a), -1)


rotate_half = torch.jit.script(_RotateHalf())
