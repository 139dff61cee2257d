"""t is used twice, turned and unturned, but its gradient counts one use.

Expected: forward=PASSED backward=INCORRECT_NUMERICAL
Cause: the sine's part is left out
"""

import torch


def _turn(x):
    x1, x2 = x.chunk(2, dim=-1)
    return torch.cat((-x2, x1), dim=-1)


def rope(t, freqs):
    s, d2 = t.shape[0], freqs.shape[-1]
    cos, sin = freqs[:s].cos().to(t.dtype), freqs[:s].sin().to(t.dtype)
    turned, passed = t[..., :d2], t[..., d2:]
    return torch.cat((turned * cos + _turn(turned.detach()) * sin, passed), dim=-1)
