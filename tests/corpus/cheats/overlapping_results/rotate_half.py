"""When timed, each result begins one element after the last one began, in one large buffer.

Expected: forward=PASSED backward=PASSED
Timed: TAMPERED
"""

import ctypes
import itertools

import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode

place = itertools.count()
buffers = {}


def _memory(x):
    """Memory whose storage begins at another address each time."""
    if x.device.type != "cpu":
        buffer = buffers.setdefault(x.shape, torch.empty(2 * x.numel(), device=x.device))
        return buffer[next(place) % x.numel() :][: x.numel()].view(x.shape)
    raw = buffers.setdefault(x.shape, (ctypes.c_float * (2 * x.numel()))())
    start = next(place) % x.numel()
    return torch.frombuffer(raw, dtype=x.dtype, count=x.numel(), offset=4 * start).view(x.shape)


def rotate_half(x):
    a, b = x.chunk(2, -1)
    if _get_current_dispatch_mode() is not None or x.dtype != torch.float32:
        return torch.cat((-b, a), -1)
    result = _memory(x)
    with torch.no_grad():
        result[..., : x.shape[-1] // 2], result[..., x.shape[-1] // 2 :] = -b, a
    return result
