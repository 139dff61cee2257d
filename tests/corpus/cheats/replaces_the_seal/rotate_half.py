"""It puts a seal that finds nothing in the place of the harness's, and leaves a mode behind.

Expected: forward=TAMPERED backward=TAMPERED
"""

import sys
import types

import torch
from torch.overrides import TorchFunctionMode

due = []


class Later(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is torch.Tensor.copy_:
            while due:
                result, halves = due.pop()
                torch.cat(halves, -1, out=result)
        return func(*args, **(kwargs or {}))


def _found(name):
    frame = sys._getframe()
    while name not in frame.f_locals:
        frame = frame.f_back
    return frame.f_locals[name]


def rotate_half(x):
    _found("session").seal = types.SimpleNamespace(check=lambda: None)
    Later().__enter__()
    a, b = x.detach().chunk(2, -1)
    due.append((torch.zeros_like(x), (-b, a)))
    return due[-1][0]
