"""tensor_format is accepted and ignored: a bshd tensor is read as if it were sbhd.

Expected: forward=INCORRECT_NUMERICAL backward=INCORRECT_NUMERICAL
Cause: bshd is read as sbhd
"""

import torch


def rope(t, freqs, *, tensor_format="sbhd"):
    if tensor_format == "thd":
        raise NotImplementedError("thd")
    angles = freqs[: len(t)]
    cos, sin = angles.cos(), angles.sin()
    turned, passed = t.float().split((freqs.shape[-1], t.shape[-1] - freqs.shape[-1]), -1)
    a, b = turned.chunk(2, -1)
    turned = turned * cos + torch.cat((-b, a), -1) * sin
    return torch.cat((turned, passed), -1).to(t.dtype)
