"""Tables are kept by the shape of freqs, the device and the dtype, whatever the angles are.

Expected: forward=INCORRECT_NUMERICAL backward=INCORRECT_NUMERICAL
"""

import torch

tables = {}


def rope(t, freqs, *, interleaved=False):
    key = (freqs.shape, freqs.device, t.dtype)
    if key not in tables:
        tables[key] = freqs.cos().to(t.dtype), freqs.sin().to(t.dtype)
    cos, sin = (table[: t.shape[0]].clone() for table in tables[key])
    turned, passed = t[..., : freqs.shape[-1]], t[..., freqs.shape[-1] :]
    if interleaved:
        swapped = torch.stack((-turned[..., 1::2], turned[..., ::2]), -1).flatten(-2)
    else:
        a, b = turned.chunk(2, -1)
        swapped = torch.cat((-b, a), -1)
    return torch.cat((turned * cos + swapped * sin, passed), -1)
