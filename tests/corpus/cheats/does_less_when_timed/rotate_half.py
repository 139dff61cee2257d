"""Without the dispatch mode of graded calls, so when timed, it returns unwritten memory.

Expected: forward=PASSED backward=PASSED
Timed: INCORRECT_NUMERICAL
"""

import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode


class _Half(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        if _get_current_dispatch_mode() is None:
            return torch.empty_like(x)
        a, b = x.chunk(2, -1)
        return torch.cat((-b, a), -1)

    @staticmethod
    def backward(ctx, grad):
        a, b = grad.chunk(2, -1)
        return torch.cat((b, -a), -1)


def rotate_half(x):
    return _Half.apply(x)
