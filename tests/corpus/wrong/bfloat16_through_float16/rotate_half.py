"""bfloat16 is computed in float16, which has no number above 65,504.

Expected: forward=INCORRECT_NUMERICAL backward=INCORRECT_NUMERICAL
"""

import torch


def rotate_half(x):
    first, second = (x.half() if x.dtype == torch.bfloat16 else x).chunk(2, -1)
    return torch.cat((-second, first), -1).to(x.dtype)
