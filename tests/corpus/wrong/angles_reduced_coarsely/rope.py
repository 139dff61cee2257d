"""Angles are reduced below 2 pi in float32, which costs an angle of a million most of its bits.

Expected: forward=INCORRECT_NUMERICAL backward=INCORRECT_NUMERICAL
Cause: angles are reduced below 2 pi in float32
"""

import math

import torch


def _turn(x):
    x1, x2 = x.chunk(2, dim=-1)
    return torch.cat((-x2, x1), dim=-1)


def rope(t, freqs):
    s, d2 = t.shape[0], freqs.shape[-1]
    angles = freqs[:s]
    angles = angles - (angles / (2 * math.pi)).floor() * (2 * math.pi)
    turned, passed = t[..., :d2], t[..., d2:]
    cos, sin = angles.cos().to(t.dtype), angles.sin().to(t.dtype)
    return torch.cat((turned * cos + _turn(turned) * sin, passed), dim=-1)
