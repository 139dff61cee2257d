"""It leaves a trace function behind.

Expected: forward=TAMPERED backward=TAMPERED
"""

import sys

import torch


def rotate_half(x):
    sys.settrace(lambda frame, event, arg: None)
    a, b = x.chunk(2, -1)
    return torch.cat((-b, a), -1)
