"""It replaces the code of the harness's function `fill`, found in the frames above.

Expected: forward=TAMPERED backward=TAMPERED
"""

import sys

import torch


def nothing(tensor, value):
    pass


def rotate_half(x):
    frame = sys._getframe()
    while frame:
        if "Poison" in frame.f_globals:
            globals_ = frame.f_globals["Poison"].overrun.__globals__
            globals_["fill"].__code__ = nothing.__code__
        frame = frame.f_back
    y = torch.empty_like(x)
    y[..., : x.shape[-1] // 2] = -x[..., x.shape[-1] // 2 :]
    return y
