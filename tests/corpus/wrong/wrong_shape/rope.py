"""Heads and features come back as one dimension.

Expected: forward=INCORRECT_SHAPE backward=INCORRECT_SHAPE
"""

import torch


def rope(t, freqs):
    freqs, half = freqs[: t.shape[0]], freqs.shape[-1] // 2
    cos, sin = freqs.cos().to(t.dtype), freqs.sin().to(t.dtype)
    x, rest = t[..., : 2 * half], t[..., 2 * half :]
    turned = torch.cat((-x[..., half:], x[..., :half]), -1)
    return torch.cat((x * cos + turned * sin, rest), -1).flatten(2)
