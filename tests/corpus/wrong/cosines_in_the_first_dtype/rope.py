"""cos and sin are kept for each freqs, weakly and by its version, in the dtype of the first call.

Expected: forward=INCORRECT_NUMERICAL backward=PASSED
"""

import torch
from torch.utils.weak import WeakIdKeyDictionary

KEPT = WeakIdKeyDictionary()


def _tables(freqs, dtype):
    version = None if freqs.is_inference() else freqs._version
    known = KEPT.get(freqs)
    if known is None or version is None or known[0] != version:
        known = KEPT[freqs] = version, freqs.cos().to(dtype), freqs.sin().to(dtype)
    return known[1:]


def rope(t, freqs):
    # cast, so that only the values tell
    cos, sin = (table[: t.shape[0]].to(t.dtype) for table in _tables(freqs, t.dtype))
    turned, passed = t[..., : freqs.shape[-1]], t[..., freqs.shape[-1] :]
    a, b = turned.chunk(2, -1)
    return torch.cat((turned * cos + torch.cat((-b, a), -1) * sin, passed), -1)
