"""Shapes are filled up to four dimensions, so that a fifth one is too many.

Expected: forward=RUNTIME_ERROR backward=RUNTIME_ERROR
"""

import torch


def rotate_half(x):
    batch, heads, rows, d = (1,) * (4 - x.dim()) + x.shape
    a, b = x.reshape(batch, heads, rows, d).chunk(2, -1)
    return torch.cat((-b, a), -1).reshape(x.shape)
