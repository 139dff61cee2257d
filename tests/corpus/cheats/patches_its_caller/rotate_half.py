"""It finds the harness's module in the frames above and replaces its function `fill`.

Expected: forward=TAMPERED backward=TAMPERED
"""

import sys

import torch


def rotate_half(x):
    frame = sys._getframe()
    while frame:
        if "Poison" in frame.f_globals:
            globals_ = frame.f_globals["Poison"].overrun.__globals__
            globals_["fill"] = lambda tensor, value: None
        frame = frame.f_back
    y = torch.empty_like(x)
    y[..., : x.shape[-1] // 2] = -x[..., x.shape[-1] // 2 :]
    return y
