"""Only the first batch is rotated; the others are copied.

Expected: forward=INCORRECT_NUMERICAL backward=INCORRECT_NUMERICAL
Cause: the first batch alone is rotated
"""

import torch


def rope(t, freqs):
    angles = freqs[: len(t)]
    cos, sin = angles.cos(), angles.sin()
    turned, passed = t.float().split((freqs.shape[-1], t.shape[-1] - freqs.shape[-1]), -1)
    a, b = turned.chunk(2, -1)
    turned = turned * cos + torch.cat((-b, a), -1) * sin
    first = torch.cat((turned, passed), -1).to(t.dtype)[:, :1]
    return torch.cat((first, t[:, 1:]), 1)
