"""It writes to the memory behind its argument.

Expected: forward=OUT_OF_BOUNDS backward=OUT_OF_BOUNDS
On a GPU: CRASHED
"""

import ctypes

import torch


def rotate_half(x):
    ctypes.memset(x.data_ptr() + x.untyped_storage().nbytes(), 1, 4)
    a, b = x.chunk(2, -1)
    return torch.cat((-b, a), -1)
