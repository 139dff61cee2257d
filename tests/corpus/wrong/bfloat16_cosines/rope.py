"""cos and sin are rounded to bfloat16 for every dtype of t.

Expected: forward=INCORRECT_NUMERICAL backward=INCORRECT_NUMERICAL
Cause: cos and sin are rounded to bfloat16
"""

import torch


def rope(t, freqs):
    angles = freqs[: len(t)]
    cos, sin = angles.cos().bfloat16(), angles.sin().bfloat16()
    turned, passed = t.float().split((freqs.shape[-1], t.shape[-1] - freqs.shape[-1]), -1)
    a, b = turned.chunk(2, -1)
    turned = turned * cos + torch.cat((-b, a), -1) * sin
    return torch.cat((turned, passed), -1).to(t.dtype)
