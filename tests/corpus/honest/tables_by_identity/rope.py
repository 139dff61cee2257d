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


def _of_tokens(t, table, tensor_format, ends):
    if tensor_format == "thd":
        token = torch.arange(len(t), dtype=ends.dtype, device=t.device)
        return table[token - ends[torch.searchsorted(ends, token, right=True) - 1]].squeeze(1)
    table = table[: t.shape[tensor_format.index("s")]]
    return table.transpose(0, 1) if tensor_format == "bshd" else table


def rope(t, freqs, *, tensor_format="sbhd", interleaved=False, cu_seqlens=None):
    cos, sin = (_of_tokens(t, table, tensor_format, cu_seqlens) for table in _tables(freqs))
    turned, passed = t[..., : cos.shape[-1]].float(), t[..., cos.shape[-1] :]
    if interleaved:
        swapped = torch.stack((-turned[..., 1::2], turned[..., ::2]), -1).flatten(-2)
    else:
        x1, x2 = turned.chunk(2, -1)
        swapped = torch.cat((-x2, x1), -1)
    return torch.cat(((turned * cos + swapped * sin).to(t.dtype), passed), -1)
