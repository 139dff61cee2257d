"""It is right for an address's first input alone, and returns zeros for any other one there.

Expected: forward=INCORRECT_NUMERICAL backward=INCORRECT_NUMERICAL
"""

import torch

first = {}


def rotate_half(x):
    seen = first.setdefault((x.data_ptr(), x.shape, x.stride(), x.dtype), x.detach().clone())
    a, b = x.chunk(2, -1)
    return torch.cat((-b, a), -1) * torch.equal(seen, x)
