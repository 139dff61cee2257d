"""Backward returns the gradients of gate and up in the other order, over autograd's own.

Expected: forward=PASSED backward=INCORRECT_NUMERICAL
Cause: the gradients of gate and up are exchanged, and all that follows
"""

import torch
from torch.nn.functional import silu


class _Gated(torch.autograd.Function):
    @staticmethod
    def forward(ctx, gate, up):
        ctx.save_for_backward(gate, up)
        return silu(gate) * up

    @staticmethod
    def backward(ctx, grad):
        gate, up = (saved.detach().requires_grad_() for saved in ctx.saved_tensors)
        with torch.enable_grad():
            product = silu(gate) * up
        d_gate, d_up = torch.autograd.grad(product, (gate, up), grad)
        return d_up, d_gate


def masked_ffn(x, w1, w2, w3, u1, u2, u3, mask):
    def pick(a, visual, textual):
        return torch.where(mask[:, None], a @ visual.T, a @ textual.T)

    return pick(_Gated.apply(pick(x, w1, u1), pick(x, w3, u3)), w2, u2)
