"""It returns zeros, and a mode that looks like torch's own fills them in when they are copied.

Expected: forward=TAMPERED backward=TAMPERED
"""

import types

import torch
from torch.utils._device import DeviceContext

late = {}


def intercept(mode, func, kinds, args=(), kwargs=None):
    if func is torch.Tensor.copy_ and late:
        output, x = late.popitem()[1]
        a, b = x.chunk(2, -1)
        output.copy_(torch.cat((-b, a), -1))
    return func(*args, **(kwargs or {}))


def rotate_half(x):
    output = torch.zeros_like(x)
    late[0] = output, x.detach()
    mode = DeviceContext(torch.device(x.device))
    mode.__torch_function__ = types.MethodType(intercept, mode)
    mode.__enter__()
    return output
