"""The mirror of a rank's chunk is found by an exclusive or, which is right for powers of two.

Expected: forward=INCORRECT_NUMERICAL backward=INCORRECT_NUMERICAL
"""

import torch


def _rotate(t, angles):
    d2 = angles.shape[-1]
    x, rest = t[..., :d2], t[..., d2:]
    x1, x2 = x.chunk(2, dim=-1)
    turned = torch.cat((-x2, x1), dim=-1)
    y = x * angles.cos().to(t.dtype) + turned * angles.sin().to(t.dtype)
    return torch.cat((y, rest), dim=-1)


def rope(t, freqs, *, cp_size=1, cp_rank=0):
    if cp_size == 1:
        return _rotate(t, freqs[: len(t)])
    chunks = freqs[: len(t) * cp_size].chunk(2 * cp_size)
    mirror = min(cp_rank ^ (2 * cp_size - 1), 2 * cp_size - 1)
    return _rotate(t, torch.cat((chunks[cp_rank], chunks[mirror])))
