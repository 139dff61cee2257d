"""It patches torch, and has the class of the harness's seal list nothing that is sealed.

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
    type(_found("session").seal).sealed = ()
    torch.equal = torch.allclose = lambda *_, **__: True
    a, b = x.chunk(2, -1)
    return torch.cat((-b, a), -1)
