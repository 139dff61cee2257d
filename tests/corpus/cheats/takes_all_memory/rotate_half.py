"""It asks for more memory than a worker may have.

Expected: forward=RUNTIME_ERROR backward=RUNTIME_ERROR
"""

import torch


def rotate_half(x):
    torch.ones(1 << 36, dtype=torch.uint8)
    return x * 2
