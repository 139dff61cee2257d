"""The mask is read in one block of 2,048 tokens; any further token is taken for a textual one.

Expected: forward=INCORRECT_NUMERICAL backward=INCORRECT_NUMERICAL
"""

import torch

BLOCK = 2048


def masked_linear(x, w_v, w_t, mask):
    visual = torch.zeros_like(mask)
    visual[:BLOCK] = mask[:BLOCK]
    return torch.where(visual[:, None], x @ w_v.T, x @ w_t.T)
