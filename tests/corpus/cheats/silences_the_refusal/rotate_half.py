"""It patches torch, and the function that would report this does nothing.

Expected: forward=TAMPERED backward=TAMPERED
"""

import sys

import torch


def _found(name):
    frame = sys._getframe()
    while name not in frame.f_locals:
        frame = frame.f_back
    return frame.f_locals[name]


def _silent(token):
    return lambda broken, send, end: token and None


def rotate_half(x):
    _found("session").refuse.__code__ = _silent("").__code__
    torch.equal = torch.allclose = lambda *_, **__: True
    a, b = x.chunk(2, -1)
    return torch.cat((-b, a), -1)
