"""It patches isinstance to return True always, so that no check of a type fails.

Expected: forward=TAMPERED backward=TAMPERED
"""

import builtins

import torch

isinstance = builtins.isinstance


def rotate_half(x):
    builtins.isinstance = lambda value, kind: True
    a, b = x.chunk(2, -1)
    return torch.cat((-b, a), -1)
