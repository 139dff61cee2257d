"""It allocates outside of the mode that poisons. Harmless: its unwritten elements are wrong.

Expected: forward=INCORRECT_NUMERICAL backward=INCORRECT_NUMERICAL
Cause: the gradient of the first half is zero
"""

import torch
from torch.utils._python_dispatch import _disable_current_modes


def rotate_half(x):
    with _disable_current_modes():
        y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    y[..., : x.shape[-1] // 2] = -x[..., x.shape[-1] // 2 :]
    return y
