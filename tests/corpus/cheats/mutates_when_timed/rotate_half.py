"""When timed, it doubles its input after it has read it.

Expected: forward=PASSED backward=PASSED
Timed: MUTATED_INPUT
"""

import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode


class _Half(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        a, b = x.chunk(2, -1)
        result = torch.cat((-b, a), -1)
        if _get_current_dispatch_mode() is None:
            x.data.mul_(2)
        return result

    @staticmethod
    def backward(ctx, grad):
        a, b = grad.chunk(2, -1)
        return torch.cat((b, -a), -1)


def rotate_half(x):
    return _Half.apply(x)
