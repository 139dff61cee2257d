"""One flat kernel; each element reads its partner."""

import torch
from kernels import RotateHalf


def rotate_half(x: torch.Tensor, *, interleaved: bool = False) -> torch.Tensor:
    """Return [-x2, x1] for the halves [x1, x2] of x [..., d], d even.

    With `interleaved`, x1 and x2 are the even and the odd features: (x[2i], x[2i + 1]) becomes
    (-x[2i + 1], x[2i]). The result is a new contiguous tensor of x's shape and dtype (bfloat16,
    float16 or float32).
    """
    return RotateHalf.apply(x, interleaved)
