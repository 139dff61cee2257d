"""It returns its argument, and has the arena say that it holds no tensor.

Expected: forward=INCORRECT_NUMERICAL backward=INCORRECT_NUMERICAL
Cause: x comes back as it is
"""

import sys


def _found(name):
    frame = sys._getframe()
    while name not in frame.f_locals:
        frame = frame.f_back
    return frame.f_locals[name]


def rotate_half(x):
    _found("session").arena.holds = lambda tensor: False
    return x
