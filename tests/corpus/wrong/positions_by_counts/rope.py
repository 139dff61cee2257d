"""Positions are computed once for each number of tokens and sequences, whatever their lengths.

Expected: forward=INCORRECT_NUMERICAL backward=INCORRECT_NUMERICAL
"""

import torch

known = {}


def _positions(tokens, ends):
    key = (tokens, len(ends))
    if key not in known:
        token = torch.arange(tokens, dtype=ends.dtype, device=ends.device)
        sequence = torch.searchsorted(ends.contiguous(), token, right=True) - 1
        known[key] = token - ends[sequence]
    return known[key]


def rope(t, freqs, *, tensor_format="sbhd", cu_seqlens=None):
    if tensor_format != "thd":
        raise NotImplementedError(tensor_format)
    angles = freqs[_positions(len(t), cu_seqlens)].squeeze(1)
    d2 = angles.shape[-1]
    a, b = t[..., :d2].chunk(2, -1)
    turned = t[..., :d2] * angles.cos().to(t.dtype)
    turned = turned + torch.cat((-b, a), -1) * angles.sin().to(t.dtype)
    return torch.cat((turned, t[..., d2:]), -1)
