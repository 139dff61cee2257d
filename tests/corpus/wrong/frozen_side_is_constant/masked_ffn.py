"""A side whose weights are all frozen runs without autograd, to save its activations.

Expected: forward=PASSED backward=INCORRECT_NUMERICAL
"""

import torch
from torch.nn.functional import silu


def _side(x, gate, down, up):
    trained = any(weight.requires_grad for weight in (gate, down, up))
    with torch.set_grad_enabled(torch.is_grad_enabled() and trained):
        return (silu(x @ gate.T) * (x @ up.T)) @ down.T


def masked_ffn(x, w1, w2, w3, u1, u2, u3, mask):
    visual, textual = _side(x, w1, w2, w3), _side(x, u1, u2, u3)
    return torch.where(mask[:, None], visual, textual)
