"""It leaves a function mode behind that computes the result when the harness copies it.

Expected: forward=TAMPERED backward=TAMPERED
"""

import torch
from torch.overrides import TorchFunctionMode

due = []


class Later(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is torch.Tensor.copy_:
            while due:
                result, halves = due.pop()
                torch.cat(halves, -1, out=result)
        return func(*args, **(kwargs or {}))


def _later(x, *halves):
    result = torch.empty_like(x, memory_format=torch.contiguous_format)
    due.append((result, halves))
    return result


class _RotateHalf(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        Later().__enter__()
        a, b = x.chunk(2, -1)
        return _later(x, -b, a)

    @staticmethod
    def backward(ctx, grad):
        a, b = grad.chunk(2, -1)
        return _later(grad, b, -a)


def rotate_half(x):
    return _RotateHalf.apply(x)
