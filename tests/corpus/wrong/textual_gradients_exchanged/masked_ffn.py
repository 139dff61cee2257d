"""The textual gate's gradient is stored where that of the textual up belongs, and the reverse.

Expected: forward=PASSED backward=INCORRECT_NUMERICAL
Cause: the gradients of u1 and u3 are exchanged
"""

import torch
from torch.nn.functional import silu


class _Both(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, gate, up):
        ctx.save_for_backward(x, gate, up)
        return x @ gate.T, x @ up.T

    @staticmethod
    def backward(ctx, d_gate, d_up):
        x, gate, up = ctx.saved_tensors
        return d_gate @ gate + d_up @ up, d_up.T @ x, d_gate.T @ x


def masked_ffn(x, w1, w2, w3, u1, u2, u3, mask):
    visual = silu(x @ w1.T) * (x @ w3.T)
    gate, up = _Both.apply(x, u1, u3)
    return torch.where(mask[:, None], visual @ w2.T, (silu(gate) * up) @ u2.T)
