"""Its process ends midway, with status 0 and without a result.

Expected: forward=CRASHED backward=CRASHED
Fails: in every case
"""

import os

import torch


def rope(t, freqs):
    freqs, half = freqs[: t.shape[0]], freqs.shape[-1] // 2
    cos, sin = freqs.cos().to(t.dtype), freqs.sin().to(t.dtype)
    x, rest = t[..., : 2 * half], t[..., 2 * half :]
    turned = torch.cat((-x[..., half:], x[..., :half]), -1)
    os._exit(0)
    return torch.cat((x * cos + turned * sin, rest), -1)
