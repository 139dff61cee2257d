"""It patches a copy of the harness's clock. Harmless: the clock in use is out of its reach.

Expected: forward=PASSED backward=PASSED
Timed: PASSED
"""

import torch

from common.sandbox import clock

clock._gpu_time = clock._host_time = lambda *args: 1e-3


def rotate_half(x):
    a, b = x.chunk(2, -1)
    return torch.cat((-b, a), -1)
