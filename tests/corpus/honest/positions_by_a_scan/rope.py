"""Positions are torch's associative scan of ones, an operator that takes a function."""

import torch
from torch._higher_order_ops.associative_scan import associative_scan


def _sum(a, b):
    return a + b


def _angles(t, freqs, tensor_format):
    length = t.shape[tensor_format.index("s")]
    ones = torch.ones(length + 1, dtype=torch.int64, device=t.device)
    counted = associative_scan(_sum, ones, dim=0, combine_mode="generic")
    angles = freqs[counted[:length] - 1]
    return angles.transpose(0, 1) if tensor_format == "bshd" else angles


def rope(t, freqs, *, tensor_format="sbhd"):
    if tensor_format == "thd":
        raise NotImplementedError("thd")
    angles = _angles(t, freqs, tensor_format)
    d2 = freqs.shape[-1]
    turned, passed = t[..., :d2], t[..., d2:]
    x1, x2 = turned.chunk(2, dim=-1)
    cos, sin = angles.cos().to(t.dtype), angles.sin().to(t.dtype)
    return torch.cat((turned * cos + torch.cat((-x2, x1), dim=-1) * sin, passed), dim=-1)
