"""cos and sin are kept under the address and the version of freqs, which is held: both name it."""

import torch

tables = {}


def rope(t, freqs):
    key = (freqs.data_ptr(), freqs._version, freqs.shape, freqs.stride(), t.dtype)
    if key not in tables:
        tables.clear()
        tables[key] = freqs.cos().to(t.dtype), freqs.sin().to(t.dtype), freqs
    cos, sin = (table[: t.shape[0]].clone() for table in tables[key][:2])
    turned, passed = t[..., : freqs.shape[-1]], t[..., freqs.shape[-1] :]
    a, b = turned.chunk(2, -1)
    return torch.cat((turned * cos + torch.cat((-b, a), -1) * sin, passed), -1)
