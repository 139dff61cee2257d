"""It patches Tensor.copy_ to correct its wrong result while the harness copies it.

Expected: forward=TAMPERED backward=TAMPERED
"""

import torch

copy = torch.Tensor.copy_


def honest(self, source, *args, **kwargs):
    return copy(self, torch.cat(source.chunk(2, -1)[::-1], -1))


torch.Tensor.copy_ = honest


def rotate_half(x):
    a, b = x.chunk(2, -1)
    return torch.cat((a, -b), -1)
