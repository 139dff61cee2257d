"""When timed, it computes one call of sixteen, so as to be ready when a burst's last is looked at.

Expected: forward=PASSED backward=PASSED
Timed: INCORRECT_NUMERICAL
"""

import itertools

import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode

calls = itertools.count(1)


def rotate_half(x):
    if _get_current_dispatch_mode() is None and next(calls) % 16:
        return torch.empty_like(x)
    a, b = x.chunk(2, -1)
    return torch.cat((-b, a), -1)
