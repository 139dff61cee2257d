"""Only the first half of freqs is read, as if the second were the same.

Expected: forward=INCORRECT_NUMERICAL backward=INCORRECT_NUMERICAL
Cause: the angles of the first half serve both halves
"""

import torch


def rope(t, freqs):
    first = freqs[: len(t), ..., : freqs.shape[-1] // 2]
    cos, sin = first.cos().repeat(1, 1, 1, 2), first.sin().repeat(1, 1, 1, 2)
    turned, passed = t.float().split((freqs.shape[-1], t.shape[-1] - freqs.shape[-1]), -1)
    a, b = turned.chunk(2, -1)
    turned = turned * cos + torch.cat((-b, a), -1) * sin
    return torch.cat((turned, passed), -1).to(t.dtype)
