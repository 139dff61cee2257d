"""It hides the handler of the mode that poisons, and leaves half of the result unwritten.

Expected: forward=TAMPERED backward=TAMPERED
"""

import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode


def rotate_half(x):
    mode = _get_current_dispatch_mode()
    mode._run = lambda func, args, kwargs: torch.zeros_like(x)
    y = torch.empty_like(x)
    y[..., : x.shape[-1] // 2] = -x[..., x.shape[-1] // 2 :]
    return y
