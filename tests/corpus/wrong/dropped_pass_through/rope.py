"""The features that should pass through come back as zeros.

Expected: forward=INCORRECT_NUMERICAL backward=INCORRECT_NUMERICAL
Cause: the rest is not copied: it is zero
"""

import torch


def rope(t, freqs):
    angles = freqs[: len(t)]
    cos, sin = angles.cos(), angles.sin()
    turned, passed = t.float().split((freqs.shape[-1], t.shape[-1] - freqs.shape[-1]), -1)
    a, b = turned.chunk(2, -1)
    turned = turned * cos + torch.cat((-b, a), -1) * sin
    return torch.cat((turned, torch.zeros_like(passed)), -1).to(t.dtype)
