"""It computes a result once for each shape and returns it for every input of that shape.

Expected: forward=TAMPERED backward=PASSED
Timed: INCORRECT_NUMERICAL
On a GPU: TAMPERED
"""

import torch

known = {}


class _Replay(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        key = (x.storage_offset(), x.shape, x.stride(), x.dtype)
        if key not in known:
            a, b = x.chunk(2, -1)
            known[key] = torch.cat((-b, a), -1)
        return known[key].clone()

    @staticmethod
    def backward(ctx, grad):
        a, b = grad.chunk(2, -1)
        return torch.cat((b, -a), -1)


def rotate_half(x):
    return _Replay.apply(x)
