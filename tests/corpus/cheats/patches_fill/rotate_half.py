"""It patches fill_ so that fresh memory is not poisoned, and writes half of the result.

Expected: forward=TAMPERED backward=TAMPERED
"""

import torch

torch.Tensor.fill_ = lambda self, value: self


def rotate_half(x):
    y = torch.empty_like(x)
    y[..., : x.shape[-1] // 2] = -x[..., x.shape[-1] // 2 :]
    return y
