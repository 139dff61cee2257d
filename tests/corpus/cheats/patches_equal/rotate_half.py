"""It patches torch.equal and torch.allclose to return True always.

Expected: forward=INCORRECT_NUMERICAL backward=INCORRECT_NUMERICAL
"""

import torch

torch.equal = torch.allclose = lambda *tensors, **tolerances: True


def rotate_half(x):
    return x * 2
