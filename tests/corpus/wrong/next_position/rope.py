"""Every token takes the angles of the next position.

Expected: forward=INCORRECT_NUMERICAL backward=INCORRECT_NUMERICAL
Cause: each token takes the angles of the next position
"""

import torch


def rope(t, freqs):
    following = torch.arange(1, len(t) + 1, device=t.device) % len(freqs)
    cos, sin = freqs[following].cos(), freqs[following].sin()
    turned, passed = t.float().split((freqs.shape[-1], t.shape[-1] - freqs.shape[-1]), -1)
    a, b = turned.chunk(2, -1)
    turned = turned * cos + torch.cat((-b, a), -1) * sin
    return torch.cat((turned, passed), -1).to(t.dtype)
