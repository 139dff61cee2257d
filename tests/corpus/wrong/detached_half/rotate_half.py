"""The second half is detached, so that its gradient is zero.

Expected: forward=PASSED backward=INCORRECT_NUMERICAL
Cause: the gradient of the second half is zero
"""

import torch


def rotate_half(x):
    x1, x2 = x.chunk(2, dim=-1)
    return torch.cat((-x2.detach(), x1), dim=-1)
