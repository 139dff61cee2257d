"""A dispatch mode and a function mode of its own count operations inside of a call."""

import collections

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

CALLS = collections.Counter()


class Operators(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        CALLS[str(func)] += 1
        return func(*args, **(kwargs or {}))


class Functions(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        CALLS[func.__name__] += 1
        return func(*args, **(kwargs or {}))


def rotate_half(x, *, interleaved=False):
    with Operators(), Functions():
        if interleaved:
            return torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2)
        x1, x2 = x.chunk(2, -1)
        return torch.cat((-x2, x1), -1)
