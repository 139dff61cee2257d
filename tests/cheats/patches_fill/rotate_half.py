"""Fresh memory is not poisoned, and half of the result is never written.

Expected: forward=TAMPERED backward=TAMPERED
"""

import torch

torch.Tensor.fill_ = lambda self, value: self


def rotate_half(x):
    y = torch.empty_like(x)
    y[..., : x.shape[-1] // 2] = -x[..., x.shape[-1] // 2 :]
    return y
