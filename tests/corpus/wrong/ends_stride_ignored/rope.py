"""cu_seqlens is read as if it were contiguous.

Expected: forward=INCORRECT_NUMERICAL backward=INCORRECT_NUMERICAL
"""

import torch


def _rotate(t, angles):
    d2 = angles.shape[-1]
    x, rest = t[..., :d2], t[..., d2:]
    x1, x2 = x.chunk(2, dim=-1)
    turned = torch.cat((-x2, x1), dim=-1)
    y = x * angles.cos().to(t.dtype) + turned * angles.sin().to(t.dtype)
    return torch.cat((y, rest), dim=-1)


def rope(t, freqs, *, tensor_format="sbhd", cu_seqlens=None):
    if tensor_format != "thd":
        raise NotImplementedError(tensor_format)
    ends = cu_seqlens.as_strided(cu_seqlens.shape, (1,))
    ends = ends.clamp(0, len(t))
    token = torch.arange(len(t), device=t.device)
    sequence = torch.bucketize(token, ends[1:-1].cummax(0).values, right=True)
    return _rotate(t, freqs[(token - ends[sequence]).abs().clamp(max=len(freqs) - 1), 0])
