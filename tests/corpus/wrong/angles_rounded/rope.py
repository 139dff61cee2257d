"""The angles are rounded to t's dtype before their cosine, not after it.

Expected: forward=INCORRECT_NUMERICAL backward=INCORRECT_NUMERICAL
"""

import torch


def _turn(x):
    x1, x2 = x.chunk(2, dim=-1)
    return torch.cat((-x2, x1), dim=-1)


def rope(t, freqs):
    s, d2 = t.shape[0], freqs.shape[-1]
    angles = freqs[:s].to(t.dtype)
    turned, passed = t[..., :d2], t[..., d2:]
    return torch.cat((turned * angles.cos() + _turn(turned) * angles.sin(), passed), dim=-1)
