"""Every gradient of a shape lies in one buffer: the next backward overwrites it.

Expected: forward=PASSED backward=INCORRECT_NUMERICAL
"""

import torch

buffers = {}


class _RotateHalf(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        a, b = x.chunk(2, -1)
        return torch.cat((-b, a), -1)

    @staticmethod
    def backward(ctx, grad):
        key = (grad.shape, grad.dtype)
        if key not in buffers:
            buffers[key] = torch.empty(grad.shape, dtype=grad.dtype, device=grad.device)
        a, b = grad.chunk(2, -1)
        return buffers[key].copy_(torch.cat((b, -a), -1)).view(grad.shape)


def rotate_half(x):
    return _RotateHalf.apply(x)
