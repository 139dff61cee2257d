"""Where x takes no gradient, it calls the path without autograd: the weights get none either.

Expected: forward=PASSED backward=INCORRECT_NUMERICAL
"""

import torch


def masked_linear(x, w_v, w_t, mask):
    with torch.set_grad_enabled(torch.is_grad_enabled() and x.requires_grad):
        return torch.where(mask[:, None], x @ w_v.T, x @ w_t.T)
