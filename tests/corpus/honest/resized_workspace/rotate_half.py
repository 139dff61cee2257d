"""It grows a buffer by `resize_`, lets torch grow an empty `out`, and writes both whole.

Expected: forward=PASSED backward=PASSED
"""

import torch


def rotate_half(x):
    half = x.shape[-1] // 2
    y = torch.empty(1, dtype=x.dtype, device=x.device).fill_(0).resize_(x.shape)
    negative = torch.empty(0, dtype=x.dtype, device=x.device)
    with torch.no_grad():
        torch.neg(x[..., half:], out=negative)
    y[..., :half] = -x[..., half:] if x.requires_grad else negative
    y[..., half:] = x[..., :half]
    return y
