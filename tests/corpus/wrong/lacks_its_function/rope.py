"""Its function is not named after the op; the rotation is right.

Expected: forward=COMPILE_ERROR backward=COMPILE_ERROR
"""

import torch


def rotary(t, freqs):
    freqs, half = freqs[: t.shape[0]], freqs.shape[-1] // 2
    cos, sin = freqs.cos().to(t.dtype), freqs.sin().to(t.dtype)
    x, rest = t[..., : 2 * half], t[..., 2 * half :]
    turned = torch.cat((-x[..., half:], x[..., :half]), -1)
    return torch.cat((x * cos + turned * sin, rest), -1)
