"""t goes through float16 on its way to float32, so a float32 t loses thirteen bits.

Expected: forward=INCORRECT_NUMERICAL backward=INCORRECT_NUMERICAL
Cause: t is rounded to float16
"""

import torch


def rope(t, freqs):
    angles = freqs[: len(t)]
    cos, sin = angles.cos(), angles.sin()
    turned, passed = t.half().float().split((freqs.shape[-1], t.shape[-1] - freqs.shape[-1]), -1)
    a, b = turned.chunk(2, -1)
    turned = turned * cos + torch.cat((-b, a), -1) * sin
    return torch.cat((turned, passed), -1).to(t.dtype)
