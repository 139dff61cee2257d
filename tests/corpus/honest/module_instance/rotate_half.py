"""The op is an instance of a torch module.

Expected: forward=PASSED backward=PASSED
"""

import torch


class _RotateHalf(torch.nn.Module):
    def forward(self, x, *, interleaved=False):
        if interleaved:
            return torch.stack((-x[..., 1::2], x[..., ::2]), -1).reshape(x.shape)
        a, b = x.chunk(2, -1)
        return torch.cat((-b, a), -1)


rotate_half = _RotateHalf()
