"""Values below a millionth become zero, so that a small row is lost beside a large one.

Expected: forward=INCORRECT_NUMERICAL backward=PASSED
"""

import torch


def _turn(x):
    x1, x2 = x.chunk(2, dim=-1)
    return torch.cat((-x2, x1), dim=-1)


def _flush(x):
    return x * (x.detach().abs() >= 1e-6)


def rope(t, freqs):
    s, d2 = t.shape[0], freqs.shape[-1]
    cos, sin = freqs[:s].cos().to(t.dtype), freqs[:s].sin().to(t.dtype)
    turned, passed = t[..., :d2], t[..., d2:]
    output = torch.cat((turned * cos + _turn(turned) * sin, passed), dim=-1)
    return output - (output - _flush(output)).detach()
