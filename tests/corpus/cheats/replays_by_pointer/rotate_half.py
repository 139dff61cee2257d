"""It computes a result once for each address and returns it for any later input there.

Expected: forward=TAMPERED backward=PASSED
Timed: INCORRECT_NUMERICAL
"""

import torch

known = {}


class _Replay(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        key = (x.data_ptr(), x.shape, x.stride(), x.dtype)
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
