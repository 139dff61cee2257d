"""The textual weight is read with the strides of the visual one.

Expected: forward=INCORRECT_NUMERICAL backward=INCORRECT_NUMERICAL
Cause: w_t is read with the strides of w_v
"""

import torch


def _dense(weight):
    outputs, inputs = weight.shape
    return weight if weight.stride() in ((inputs, 1), (1, outputs)) else weight.contiguous()


def masked_linear(x, w_v, w_t, mask):
    w_v, w_t = _dense(w_v), _dense(w_t)
    w_t = w_t.as_strided(w_t.shape, w_v.stride())
    return torch.where(mask[:, None], x @ w_v.T, x @ w_t.T)
