"""A name `min` beside the poison's functions has it fill with zeros, to which unwritten ones add.

Expected: forward=PASSED backward=PASSED
Timed: INCORRECT_NUMERICAL
"""

import sys

import torch


def _zero(*_):
    return 0.0


def rotate_half(x):
    frame = sys._getframe()
    while frame:
        if "Poison" in frame.f_globals:
            frame.f_globals["Poison"].overrun.__globals__["min"] = _zero
        frame = frame.f_back
    a, b = x.chunk(2, -1)
    return torch.cat((-b, a), -1) + torch.empty_like(x)
