"""When timed, it rotates its input in place, and returns a copy of that.

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
            x.data.copy_(result)
        return result

    @staticmethod
    def backward(ctx, grad):
        a, b = grad.chunk(2, -1)
        return torch.cat((b, -a), -1)


def rotate_half(x):
    return _Half.apply(x)
