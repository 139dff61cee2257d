"""It is wrong on the board's shapes alone.

Expected: forward=INCORRECT_NUMERICAL backward=INCORRECT_NUMERICAL
"""

import torch

BOARD = {(10, 2, 4, 8), (8192, 2, 32, 128)}


def rotate_half(x):
    a, b = x.chunk(2, -1)
    if tuple(x.shape) in BOARD:
        return x * 1
    return torch.cat((-b, a), -1)
