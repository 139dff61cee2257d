"""It reads the mask once for each address and reuses it, whatever lies there later.

Expected: forward=INCORRECT_NUMERICAL backward=INCORRECT_NUMERICAL
Timed: INCORRECT_NUMERICAL
"""

import torch

known = {}


def masked_linear(x, w_v, w_t, mask):
    seen = known.setdefault((mask.data_ptr(), mask.shape), mask.clone())
    return torch.where(seen.clone()[:, None], x @ w_v.T, x @ w_t.T)
