"""cos and sin are kept for the tensor freqs itself, whatever is written into it later.

Expected: forward=INCORRECT_NUMERICAL backward=INCORRECT_NUMERICAL
"""

import torch
from torch.utils.weak import WeakIdKeyDictionary

KEPT = WeakIdKeyDictionary()


def rope(t, freqs):
    tables = KEPT.setdefault(freqs, {})
    if t.dtype not in tables:
        tables[t.dtype] = freqs.cos().to(t.dtype), freqs.sin().to(t.dtype)
    cos, sin = (table[: t.shape[0]].clone() for table in tables[t.dtype])
    turned, passed = t[..., : freqs.shape[-1]], t[..., freqs.shape[-1] :]
    a, b = turned.chunk(2, -1)
    return torch.cat((turned * cos + torch.cat((-b, a), -1) * sin, passed), -1)
