"""cos and sin are kept for the tensor freqs itself, held weakly, while its version is the same."""

import torch
from torch.utils.weak import WeakIdKeyDictionary

TABLES = WeakIdKeyDictionary()


def _tables(freqs):
    version = None if freqs.is_inference() else freqs._version
    known = TABLES.get(freqs)
    if known is None or version is None or known[0] != version:
        known = TABLES[freqs] = (version, freqs.cos(), freqs.sin())
    return known[1:]


def rope(t, freqs, *, tensor_format="sbhd", interleaved=False):
    if tensor_format == "thd":
        raise NotImplementedError("thd")
    cos, sin = (part[: t.shape[tensor_format.index("s")]] for part in _tables(freqs))
    if tensor_format == "bshd":
        cos, sin = cos.transpose(0, 1), sin.transpose(0, 1)
    turned, passed = t[..., : cos.shape[-1]].float(), t[..., cos.shape[-1] :]
    if interleaved:
        swapped = torch.stack((-turned[..., 1::2], turned[..., ::2]), -1).flatten(-2)
    else:
        x1, x2 = turned.chunk(2, -1)
        swapped = torch.cat((-x2, x1), -1)
    return torch.cat(((turned * cos + swapped * sin).to(t.dtype), passed), -1)
