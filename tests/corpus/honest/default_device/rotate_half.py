"""It sets torch's default device when it is imported, and counts on it for its constants.

Expected: forward=PASSED backward=PASSED
"""

import torch

torch.set_default_device("cuda" if torch.cuda.is_available() else "cpu")


def rotate_half(x):
    half = x.shape[-1] // 2
    sign = torch.cat((torch.full((half,), -1), torch.ones(half, dtype=torch.int64)))
    return x.roll(half, -1) * sign.to(x.dtype)
