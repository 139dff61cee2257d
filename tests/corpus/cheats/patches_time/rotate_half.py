"""It patches time's clocks to stand still.

Expected: forward=TAMPERED backward=TAMPERED
"""

import time

import torch

time.perf_counter_ns = time.perf_counter = lambda: 0


def rotate_half(x):
    a, b = x.chunk(2, -1)
    return torch.cat((-b, a), -1)
