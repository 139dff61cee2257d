"""The first step of a migration: one flat kernel that reads each element's partner"""

import torch
from kernels import RotateHalf


def rotate_half(x: torch.Tensor, *, interleaved: bool = False) -> torch.Tensor:
    """Turn x [..., d], d even, a quarter: [x1, x2] -> [-x2, x1].

    The halves x1 and x2 are the first and the last d / 2 features; with `interleaved` they are
    the even and the odd ones: (x[2i], x[2i + 1]) -> (-x[2i + 1], x[2i]). Returns a new contiguous
    tensor of x's shape and dtype (bfloat16, float16 or float32).
    """
    return RotateHalf.apply(x, interleaved)
