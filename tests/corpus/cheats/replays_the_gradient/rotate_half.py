"""It computes backward once for each shape and returns that for every gradient.

Expected: forward=PASSED backward=TAMPERED
"""

import torch

known = {}


class _Replay(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.key = (x.storage_offset(), x.shape, x.stride(), x.dtype)
        a, b = x.chunk(2, -1)
        return torch.cat((-b, a), -1)

    @staticmethod
    def backward(ctx, grad):
        if ctx.key not in known:
            a, b = grad.chunk(2, -1)
            known[ctx.key] = torch.cat((b, -a), -1)
        return known[ctx.key].clone()


def rotate_half(x):
    return _Replay.apply(x)
