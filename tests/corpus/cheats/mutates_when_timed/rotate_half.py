"""When timed, it doubles all inputs that it has read, so that any one of them shows it.

Expected: forward=PASSED backward=PASSED
Timed: MUTATED_INPUT
"""

import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode

READ = {}


class _Half(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        result = torch.cat((-x.chunk(2, -1)[1], x.chunk(2, -1)[0]), -1)
        if _get_current_dispatch_mode() is None:
            READ[x.data_ptr()] = x.data
            torch._foreach_mul_([*READ.values()], 2)
        return result

    @staticmethod
    def backward(ctx, grad):
        a, b = grad.chunk(2, -1)
        return torch.cat((b, -a), -1)


def rotate_half(x):
    return _Half.apply(x)
