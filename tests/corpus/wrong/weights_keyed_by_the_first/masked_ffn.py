"""Gate and projection up are kept side by side under the gate's address and version alone.

Expected: forward=INCORRECT_NUMERICAL backward=INCORRECT_NUMERICAL
"""

import torch
from torch.nn.functional import silu

kept = {}


class _Beside(torch.autograd.Function):
    @staticmethod
    def forward(ctx, gate, up):
        key = (gate.data_ptr(), gate._version, gate.shape, gate.stride(), gate.dtype)
        if key not in kept:
            kept[key] = torch.cat((gate, up))
        return kept[key].clone()

    @staticmethod
    def backward(ctx, grad):
        return grad.chunk(2)


def _layer(x, gate, down, up):
    a, b = (x @ _Beside.apply(gate, up).T).chunk(2, -1)
    return (silu(a) * b) @ down.T


def masked_ffn(x, w1, w2, w3, u1, u2, u3, mask):
    with torch.inference_mode(False):
        return torch.where(mask[:, None], _layer(x, w1, w2, w3), _layer(x, u1, u2, u3))
