"""A gradient that repeats no slice is taken to have evenly spaced rows, also a transposed one.

Expected: forward=PASSED backward=INCORRECT_NUMERICAL
"""

import torch


def _rows(grad):
    """Return the gradient as rows, each as far from the next as the first two."""
    if 0 in grad.stride() or grad.stride(-1) != 1 or grad.dim() < 3:
        return grad.reshape(-1, grad.shape[-1])
    rows, width, step = grad.numel() // max(grad.shape[-1], 1), grad.shape[-1], grad.stride(-2)
    held = grad.untyped_storage().nbytes() // grad.itemsize - grad.storage_offset()
    if (rows - 1) * step + width > held:
        return grad.reshape(rows, width)
    return grad.as_strided((rows, width), (step, 1))


class _RotateHalf(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        a, b = x.chunk(2, -1)
        return torch.cat((-b, a), -1)

    @staticmethod
    def backward(ctx, grad):
        a, b = _rows(grad).chunk(2, -1)
        return torch.cat((b, -a), -1).reshape(grad.shape)


def rotate_half(x):
    return _RotateHalf.apply(x) if x.numel() else x.clone()
