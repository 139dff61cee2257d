"""cos and sin are prepared for 256 positions; later ones take the last row.

Expected: forward=INCORRECT_NUMERICAL backward=INCORRECT_NUMERICAL
"""

import torch


def rope(t, freqs, *, tensor_format="sbhd"):
    if tensor_format == "thd":
        raise NotImplementedError("tensor_format thd")
    length = t.shape[tensor_format.index("s")]
    angles = freqs[torch.arange(length, device=t.device).clamp_max(255)]
    angles = angles.transpose(0, 1) if tensor_format == "bshd" else angles
    turned, passed = t[..., : freqs.shape[-1]], t[..., freqs.shape[-1] :]
    first, second = turned.chunk(2, -1)
    cos, sin = angles.cos().to(t.dtype), angles.sin().to(t.dtype)
    return torch.cat((turned * cos + torch.cat((-second, first), -1) * sin, passed), -1)
