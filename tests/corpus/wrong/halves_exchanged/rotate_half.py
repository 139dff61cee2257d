"""The two halves of the result are stored in each other's place.

Expected: forward=INCORRECT_NUMERICAL backward=INCORRECT_NUMERICAL
Cause: the halves come back exchanged: [x1, -x2]
"""

import torch


def rotate_half(x):
    x1, x2 = x.chunk(2, dim=-1)
    return torch.cat((x1, -x2), dim=-1)
