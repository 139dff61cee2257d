"""A result is computed once for each shape; later calls return unwritten memory.

Expected: forward=NONDETERMINISTIC backward=PASSED
"""

import torch

seen = set()


class _RotateHalf(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        key = (x.storage_offset(), x.shape, x.stride(), x.dtype)
        if key in seen:
            return torch.empty_like(x)
        seen.add(key)
        x1, x2 = x.chunk(2, dim=-1)
        return torch.cat((-x2, x1), dim=-1)

    @staticmethod
    def backward(ctx, grad):
        g1, g2 = grad.chunk(2, dim=-1)
        return torch.cat((g2, -g1), dim=-1)


def rotate_half(x):
    return _RotateHalf.apply(x)
