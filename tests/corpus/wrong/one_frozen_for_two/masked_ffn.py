"""Whether the projection up takes a gradient is read from the projection down, its neighbour.

Expected: forward=PASSED backward=INCORRECT_NUMERICAL
"""

import torch
from torch.nn.functional import silu


def _ffn(x, w1, w2, w3, u1, u2, u3, mask):
    visual = (silu(x @ w1.T) * (x @ w3.T)) @ w2.T
    textual = (silu(x @ u1.T) * (x @ u3.T)) @ u2.T
    return torch.where(mask[:, None], visual, textual)


class _MaskedFFN(torch.autograd.Function):
    @staticmethod
    def forward(ctx, *inputs):
        ctx.save_for_backward(*inputs)
        return _ffn(*inputs)

    @staticmethod
    def backward(ctx, grad):
        *inputs, mask = ctx.saved_tensors
        with torch.enable_grad():
            again = [each.detach().requires_grad_() for each in inputs]
            output = _ffn(*again, mask)
        gradients = torch.autograd.grad(output, again, grad)
        x, w1, w2, _, u1, u2, _, _ = ctx.needs_input_grad
        wanted = x, w1, w2, w2, u1, u2, u2
        pairs = zip(gradients, wanted, strict=True)
        return *(gradient if wants else None for gradient, wants in pairs), None


def masked_ffn(x, w1, w2, w3, u1, u2, u3, mask):
    return _MaskedFFN.apply(x, w1, w2, w3, u1, u2, u3, mask)
