"""Pairs are complex numbers: y1 is the real part of z e^(i a1), y2 the imaginary of z e^(i a2)."""

import torch


def _pairs(t, interleaved):
    """Two views [..., d2 / 2]"""
    half = t.shape[-1] // 2
    return (t[..., ::2], t[..., 1::2]) if interleaved else (t[..., :half], t[..., half:])


def rope(t, freqs, *, tensor_format="sbhd", interleaved=False):
    if tensor_format == "thd":
        raise NotImplementedError("thd")
    angles = freqs[: t.shape[tensor_format.index("s")]]
    angles = angles.transpose(0, 1) if tensor_format == "bshd" else angles
    turned, passed = t[..., : angles.shape[-1]], t[..., angles.shape[-1] :]
    z = torch.complex(*(part.float().contiguous() for part in _pairs(turned, interleaved)))
    first, second = (torch.polar(torch.ones_like(a), a) for a in _pairs(angles, interleaved))
    parts = torch.view_as_real(z * first)[..., 0], torch.view_as_real(z * second)[..., 1]
    turned = torch.stack(parts, -1).flatten(-2) if interleaved else torch.cat(parts, -1)
    return torch.cat((turned.to(t.dtype), passed), -1)
