"""Interleaved, every sequence starts at position 0, whatever start_positions says.

Expected: forward=INCORRECT_NUMERICAL backward=INCORRECT_NUMERICAL
Cause: start_positions is ignored where interleaved
"""

import torch


def _rotate(t, angles, interleaved):
    d2 = angles.shape[-1]
    x, rest = t[..., :d2], t[..., d2:]
    if interleaved:
        turned = torch.stack((-x[..., 1::2], x[..., ::2]), dim=-1).flatten(-2)
    else:
        x1, x2 = x.chunk(2, dim=-1)
        turned = torch.cat((-x2, x1), dim=-1)
    y = x * angles.cos().to(t.dtype) + turned * angles.sin().to(t.dtype)
    return torch.cat((y, rest), dim=-1)


def rope(t, freqs, *, interleaved=False, start_positions=None):
    position = torch.arange(len(t), device=t.device)[:, None]
    if start_positions is not None and not interleaved:
        position = position + start_positions
    return _rotate(t, freqs[position, 0, 0].unsqueeze(2), interleaved)
