"""Every result of a shape lies in the same memory and overwrites the one before.

Expected: forward=INCORRECT_NUMERICAL backward=PASSED
Timed: TAMPERED
"""

import torch

buffers = {}


class _Half(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        key = (x.shape, x.dtype)
        buffers.setdefault(key, torch.empty(x.shape, dtype=x.dtype, device=x.device))
        a, b = x.chunk(2, -1)
        memory = buffers[key].copy_(torch.cat((-b, a), -1)).untyped_storage()
        return x.new_empty(0).set_(memory, 0, x.shape)  # no view for autograd

    @staticmethod
    def backward(ctx, grad):
        a, b = grad.chunk(2, -1)
        return torch.cat((b, -a), -1)


def rotate_half(x):
    return _Half.apply(x)
