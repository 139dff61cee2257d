"""It reads the memory behind its argument and does not use it.

Expected: forward=OUT_OF_BOUNDS backward=PASSED
On a GPU: CRASHED
"""

import ctypes

import torch


def rotate_half(x):
    behind = x.data_ptr() + x.untyped_storage().nbytes()
    value = ctypes.c_float.from_address(behind).value
    a, b = x.chunk(2, -1)
    return torch.cat((-b, a), -1) + 0 * value
