"""cos and sin stay in float32 and promote the result, so half inputs give float32.

Expected: forward=INCORRECT_DTYPE backward=INCORRECT_DTYPE
"""

import torch


def rope(t, freqs):
    freqs, half = freqs[: t.shape[0]], freqs.shape[-1] // 2
    cos, sin = freqs.cos(), freqs.sin()
    x, rest = t[..., : 2 * half], t[..., 2 * half :]
    turned = torch.cat((-x[..., half:], x[..., :half]), -1)
    return torch.cat((x * cos + turned * sin, rest), -1)
