"""It replaces torch.cuda.Event by a class that reports a constant time.

Expected: forward=PASSED backward=PASSED
On a GPU: TAMPERED
"""

import torch


class Event:
    def __init__(self, **how):
        self.record = self.synchronize = lambda *stream: None

    def elapsed_time(self, other):
        return 1e-3


torch.cuda.Event = Event


def rotate_half(x):
    a, b = x.chunk(2, -1)
    return torch.cat((-b, a), -1)
