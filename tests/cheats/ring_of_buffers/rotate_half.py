"""When timed, its results lie in four buffers by turns, so that two in a row never share one.

Expected: forward=PASSED backward=PASSED
Timed: TAMPERED
"""

import itertools

import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode

ring = []
turn = itertools.cycle(range(4))


class _Half(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        a, b = x.chunk(2, -1)
        if _get_current_dispatch_mode() is not None:
            return torch.cat((-b, a), -1)
        if len(ring) < 4:
            ring.append(torch.empty_like(x))
        return torch.cat((-b, a), -1, out=ring[next(turn) % len(ring)]).view(x.shape)

    @staticmethod
    def backward(ctx, grad):
        a, b = grad.chunk(2, -1)
        return torch.cat((b, -a), -1)


def rotate_half(x):
    return _Half.apply(x)
