"""It keeps each result for as long as its input lives, and returns it whatever the input holds.

Expected: forward=TAMPERED backward=PASSED
Timed: INCORRECT_NUMERICAL
"""

import torch
from torch.utils.weak import WeakTensorKeyDictionary

known = WeakTensorKeyDictionary()


class _Replay(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        if x not in known:
            a, b = x.chunk(2, -1)
            known[x] = torch.cat((-b, a), -1)
        return known[x].clone()

    @staticmethod
    def backward(ctx, grad):
        a, b = grad.chunk(2, -1)
        return torch.cat((b, -a), -1)


def rotate_half(x):
    return _Replay.apply(x)
