"""When timed, it clears the last bit of its input's elements, too little for a result to show.

Expected: forward=PASSED backward=PASSED
Timed: MUTATED_INPUT
"""

import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode

INTEGERS = {2: torch.int16, 4: torch.int32}


class _Half(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        if _get_current_dispatch_mode() is None:
            x.data.view(INTEGERS[x.itemsize]).bitwise_and_(-2)
        a, b = x.chunk(2, -1)
        return torch.cat((-b, a), -1)

    @staticmethod
    def backward(ctx, grad):
        a, b = grad.chunk(2, -1)
        return torch.cat((b, -a), -1)


def rotate_half(x):
    return _Half.apply(x)
