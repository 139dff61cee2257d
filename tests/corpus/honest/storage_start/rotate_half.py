"""It views memory of its own from its storage's start, by `as_strided` with an offset of zero.

Expected: forward=PASSED backward=PASSED
"""

import torch


def rotate_half(x):
    half = x.shape[-1] // 2
    y = torch.empty_like(x, memory_format=torch.contiguous_format)
    flat = y.as_strided((y.numel(),), (1,), 0).view(y.shape)
    flat[..., :half] = -x[..., half:]
    flat[..., half:] = x[..., :half]
    return y
