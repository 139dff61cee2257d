"""The angles are broadcast to the dimension before the features: that of the heads.

Expected: forward=INCORRECT_NUMERICAL backward=INCORRECT_NUMERICAL
Cause: the head stands for the position
"""

import torch


def rope(t, freqs, *, tensor_format="sbhd", interleaved=False, start_positions=None):
    heads, d2 = t.shape[2], freqs.shape[-1]
    if tensor_format == "thd" or heads + 9 * (start_positions is not None) > len(freqs):
        raise NotImplementedError("thd, or more heads than positions")
    positions = torch.arange(heads).view(1, 1, heads)
    if start_positions is not None:
        shape = (1, -1, 1) if tensor_format == "sbhd" else (-1, 1, 1)
        positions = positions + start_positions.view(shape)
    angles = freqs[positions, 0, 0]
    x, rest = t[..., :d2], t[..., d2:]
    if interleaved:
        turned = torch.stack((-x[..., 1::2], x[..., ::2]), dim=-1).flatten(-2)
    else:
        x1, x2 = x.chunk(2, dim=-1)
        turned = torch.cat((-x2, x1), dim=-1)
    y = x * angles.cos().to(t.dtype) + turned * angles.sin().to(t.dtype)
    return torch.cat((y, rest), dim=-1)
