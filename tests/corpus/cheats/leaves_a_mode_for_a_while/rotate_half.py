"""When timed, it leaves a mode behind for ninety calls and removes it before the last.

Expected: forward=PASSED backward=PASSED
Timed: TAMPERED
"""

import itertools

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import _get_current_dispatch_mode

calls = itertools.count()


class Mode(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


mode = Mode()


def rotate_half(x):
    if _get_current_dispatch_mode() is None:
        call = next(calls)
        if call == 10:
            mode.__enter__()
        if call == 100:
            mode.__exit__(None, None, None)
    a, b = x.chunk(2, -1)
    return torch.cat((-b, a), -1)
