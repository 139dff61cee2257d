"""It ends the mode that poisons fresh memory.

Expected: forward=RUNTIME_ERROR backward=RUNTIME_ERROR
"""

import torch
from torch.utils._python_dispatch import _pop_mode


def rotate_half(x):
    _pop_mode()
    y = torch.empty_like(x)
    y[..., : x.shape[-1] // 2] = -x[..., x.shape[-1] // 2 :]
    return y
