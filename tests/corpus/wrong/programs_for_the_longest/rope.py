"""The work is divided by the longest sequence, which has no token where none has one.

Expected: forward=RUNTIME_ERROR backward=RUNTIME_ERROR
"""

import torch

TILE = 1024


def _turned(t, angles):
    d2 = angles.shape[-1]
    a, b = t[..., :d2].chunk(2, -1)
    turned = t[..., :d2] * angles.cos().to(t.dtype)
    turned = turned + torch.cat((-b, a), -1) * angles.sin().to(t.dtype)
    return torch.cat((turned, t[..., d2:]), -1)


def rope(t, freqs, *, tensor_format="sbhd", cu_seqlens=None):
    if tensor_format != "thd":
        raise NotImplementedError(tensor_format)
    ends = cu_seqlens.contiguous()
    token = torch.arange(len(t), dtype=ends.dtype, device=ends.device)
    position = token - ends[torch.searchsorted(ends, token, right=True) - 1]
    rows = max(TILE // int(ends.diff().max()), 1)
    blocks = zip(t.split(rows), position.split(rows), strict=True)
    return torch.cat([_turned(block, freqs[rest].squeeze(1)) for block, rest in blocks])
