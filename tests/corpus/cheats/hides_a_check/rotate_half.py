"""It patches torch, and hides the session's check behind a function of its own.

Expected: forward=TAMPERED backward=TAMPERED
"""

import sys

import torch


def _found(name):
    frame = sys._getframe()
    while name not in frame.f_locals:
        frame = frame.f_back
    return frame.f_locals[name]


def rotate_half(x):
    _found("session").hold = lambda *_: None
    torch.equal = torch.allclose = lambda *_, **__: True
    a, b = x.chunk(2, -1)
    return torch.cat((-b, a), -1)
