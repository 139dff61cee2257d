"""The fast path for calls without a gradient swaps the two weights.

Expected: forward=INCORRECT_NUMERICAL backward=PASSED
"""

import torch


def masked_linear(x, w_v, w_t, mask):
    chosen = mask[:, None] if torch.is_grad_enabled() else ~mask[:, None]
    return torch.where(chosen, x @ w_v.T, x @ w_t.T)
