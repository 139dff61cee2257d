"""It searches its memory for the truth. Harmless: its process never held the truth.

Expected: forward=INCORRECT_NUMERICAL backward=INCORRECT_NUMERICAL
"""

import gc
import sys

import torch


def _seen():
    frame = sys._getframe()
    while frame:
        yield from frame.f_locals.values()
        yield from frame.f_globals.values()
        frame = frame.f_back
    yield from gc.get_objects()


def rotate_half(x):
    for value in list(_seen()):
        if type(value) is torch.Tensor and value.dtype == torch.float64 and value.shape == x.shape:
            return value.to(x.dtype)
    return x * 2
