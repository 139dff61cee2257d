"""The mask is read as if it were contiguous.

Expected: forward=INCORRECT_NUMERICAL backward=INCORRECT_NUMERICAL
"""

import torch


def masked_linear(x, w_v, w_t, mask):
    mask = mask.as_strided(mask.shape, (1,))
    return torch.where(mask[:, None], x @ w_v.T, x @ w_t.T)
