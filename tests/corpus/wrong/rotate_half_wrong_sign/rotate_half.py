"""The wrong half is negated, [x2, -x1], and the gradient is wrong in the same way.

Expected: forward=INCORRECT_NUMERICAL backward=INCORRECT_NUMERICAL
Cause: the other half is negated: [x2, -x1]
"""

import torch


def rotate_half(x):
    a, b = x.chunk(2, -1)
    return torch.cat((b, -a), -1)
