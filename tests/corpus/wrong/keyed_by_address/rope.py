"""cos and sin are computed once for each address of freqs, whatever lies there later.

Expected: forward=INCORRECT_NUMERICAL backward=INCORRECT_NUMERICAL
"""

import torch

tables = {}


def rope(t, freqs):
    key = (freqs.data_ptr(), freqs.shape, freqs.stride(), t.dtype)
    if key not in tables:
        tables[key] = freqs.cos().to(t.dtype), freqs.sin().to(t.dtype)
    cos, sin = (table[: t.shape[0]].clone() for table in tables[key])
    turned, passed = t[..., : freqs.shape[-1]], t[..., freqs.shape[-1] :]
    a, b = turned.chunk(2, -1)
    return torch.cat((turned * cos + torch.cat((-b, a), -1) * sin, passed), -1)
