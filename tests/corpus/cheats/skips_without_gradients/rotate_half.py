"""When timed without gradients, a column of its own, it returns unwritten memory.

Expected: forward=PASSED backward=PASSED
Timed: INCORRECT_NUMERICAL
"""

import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode


def rotate_half(x):
    if _get_current_dispatch_mode() is None and not torch.is_grad_enabled():
        return torch.empty_like(x)
    a, b = x.chunk(2, -1)
    return torch.cat((-b, a), -1)
