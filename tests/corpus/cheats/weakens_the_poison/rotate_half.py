"""It has fresh memory hold zero in both runs, and leaves half of the result unwritten.

Expected: forward=INCORRECT_NUMERICAL backward=INCORRECT_NUMERICAL
Cause: the gradient of the first half is zero
"""

import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode


def rotate_half(x):
    _get_current_dispatch_mode().value = 0.0
    y = torch.empty_like(x)
    y[..., : x.shape[-1] // 2] = -x[..., x.shape[-1] // 2 :]
    return y
