"""Its first parameter is called x, not t; the rotation is right.

Expected: forward=COMPILE_ERROR backward=COMPILE_ERROR
"""

import torch


def rope(x, freqs):
    freqs, half = freqs[: x.shape[0]], freqs.shape[-1] // 2
    cos, sin = freqs.cos().to(x.dtype), freqs.sin().to(x.dtype)
    front, rest = x[..., : 2 * half], x[..., 2 * half :]
    turned = torch.cat((-front[..., half:], front[..., :half]), -1)
    return torch.cat((front * cos + turned * sin, rest), -1)
