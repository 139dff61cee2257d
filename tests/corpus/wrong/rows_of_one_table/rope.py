"""One table of angles for all rows, sequence after sequence, which is the order of bshd alone.

Expected: forward=INCORRECT_NUMERICAL backward=INCORRECT_NUMERICAL
Cause: rows of sbhd are counted as those of bshd: row % s
"""

import torch


def rope(t, freqs, *, tensor_format="sbhd", interleaved=False, start_positions=None):
    if tensor_format == "thd":
        raise NotImplementedError("thd")
    first, second, _, d2 = *t.shape[:3], freqs.shape[-1]
    s, b = (first, second) if tensor_format == "sbhd" else (second, first)
    starts = [0] * b if start_positions is None else start_positions.tolist()
    table = [freqs[start : start + s] for start in starts]
    angles = torch.cat(table) if table else freqs[:0]
    angles = angles.view(first, second, 1, d2)
    x, rest = t[..., :d2], t[..., d2:]
    if interleaved:
        turned = torch.stack((-x[..., 1::2], x[..., ::2]), dim=-1).flatten(-2)
    else:
        x1, x2 = x.chunk(2, dim=-1)
        turned = torch.cat((-x2, x1), dim=-1)
    y = x * angles.cos().to(t.dtype) + turned * angles.sin().to(t.dtype)
    return torch.cat((y, rest), dim=-1)
