"""torch's default dtype is float64 from its import on, bfloat16 after a call.

Expected: forward=PASSED backward=PASSED
"""

import torch

torch.set_default_dtype(torch.float64)


def rotate_half(x):
    torch.set_default_dtype(torch.bfloat16)
    a, b = x.chunk(2, -1)
    return torch.cat((-b, a), -1)
