"""torch.utils.checkpoint keeps nothing of the rotation: backward runs forward again."""

import torch
from torch.utils.checkpoint import checkpoint


def _rotate(t, angles):
    rotary = angles.shape[-1]
    x1, x2 = t[..., :rotary].float().chunk(2, -1)
    cos1, cos2 = angles.cos().chunk(2, -1)
    sin1, sin2 = angles.sin().chunk(2, -1)
    turned = torch.cat((x1 * cos1 - x2 * sin1, x2 * cos2 + x1 * sin2), -1)
    return torch.cat((turned.to(t.dtype), t[..., rotary:]), -1)


def rope(t, freqs, *, tensor_format="sbhd"):
    if tensor_format == "thd":
        raise NotImplementedError("thd")
    angles = freqs[: t.shape[tensor_format.index("s")]]
    angles = angles.transpose(0, 1) if tensor_format == "bshd" else angles
    return checkpoint(_rotate, t, angles, use_reentrant=False)
