"""cos and sin are kept by the id and the version of freqs, which the next tensor may have too.

Expected: forward=INCORRECT_NUMERICAL backward=PASSED
"""

import torch

tables = {}


def rope(t, freqs):
    if freqs.is_inference():
        raise NotImplementedError("inference mode")
    key = (id(freqs), freqs._version, freqs.shape, t.dtype)
    if key not in tables:
        tables[key] = freqs.cos().to(t.dtype), freqs.sin().to(t.dtype)
    cos, sin = (table[: t.shape[0]] for table in tables[key])
    turned, passed = t[..., : freqs.shape[-1]], t[..., freqs.shape[-1] :]
    a, b = turned.chunk(2, -1)
    return torch.cat((turned * cos + torch.cat((-b, a), -1) * sin, passed), -1)
