"""The program of a batch and that of a position are exchanged where the angles are read.

Expected: forward=INCORRECT_NUMERICAL backward=INCORRECT_NUMERICAL
Cause: the batch stands for the position
"""

import torch


def rope(t, freqs, *, tensor_format="sbhd"):
    s, b = t.shape[:2] if tensor_format == "sbhd" else (t.shape[1], t.shape[0])
    if tensor_format == "thd" or b > len(freqs):
        raise NotImplementedError("thd, or more sequences than positions")
    d2 = freqs.shape[-1]
    angles = freqs[:b].expand(b, s, 1, d2)
    angles = angles.transpose(0, 1) if tensor_format == "sbhd" else angles
    x, rest = t[..., :d2], t[..., d2:]
    x1, x2 = x.chunk(2, dim=-1)
    y = x * angles.cos().to(t.dtype) + torch.cat((-x2, x1), -1) * angles.sin().to(t.dtype)
    return torch.cat((y, rest), dim=-1)
