"""silu is computed as x exp(x) / (1 + exp(x)), which is NaN from x = 89 on.

Expected: forward=INCORRECT_NUMERICAL backward=INCORRECT_NUMERICAL
"""

import torch


def _layer(x, w1, w2, w3):
    gate = (x @ w1.T).float()
    return (gate * gate.exp() / (1 + gate.exp())).to(x.dtype) * (x @ w3.T) @ w2.T


def masked_ffn(x, w1, w2, w3, u1, u2, u3, mask):
    return torch.where(mask[:, None], _layer(x, w1, w2, w3), _layer(x, u1, u2, u3))
