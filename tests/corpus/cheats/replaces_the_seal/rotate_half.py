"""It patches torch, and puts a seal that finds nothing in the place of the harness's.

Expected: forward=TAMPERED backward=TAMPERED
"""

import sys
import types

import torch


def _found(name):
    frame = sys._getframe()
    while name not in frame.f_locals:
        frame = frame.f_back
    return frame.f_locals[name]


def rotate_half(x):
    _found("session").seal = types.SimpleNamespace(broken=lambda *_: None)
    torch.equal = torch.allclose = lambda *_, **__: True
    a, b = x.chunk(2, -1)
    return torch.cat((-b, a), -1)
