"""Tokens sorted by kind on the device; the gate and its gradient in the products' epilogues."""

import torch
from gated import down_gradient, up
from gradients import weight_gradients
from partition import partition
from products import product
from tiles import ROWS


class _MaskedFFN(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w1, w2, w3, u1, u2, u3, mask):
        plan = partition(mask, ROWS)
        keep = any(ctx.needs_input_grad)
        hidden, gates = up(x, (w1.T, w3.T, u1.T, u3.T), plan, keep)
        ctx.save_for_backward(x, w1, w2, w3, u1, u2, u3, gates)
        ctx.plan = plan
        return product(hidden[None], (w2.T, u2.T), plan, len(x), gathered=False)

    @staticmethod
    def backward(ctx, g):
        x, w1, w2, w3, u1, u2, u3, gates = ctx.saved_tensors
        plan, needed = ctx.plan, ctx.needs_input_grad
        d_x = d_w1 = d_w2 = d_w3 = d_u1 = d_u2 = d_u3 = None
        d_gates, hidden = down_gradient(g, (w2, u2), gates, plan)
        if needed[2] or needed[5]:
            (d_w2,), (d_u2,) = weight_gradients(g, hidden, plan, x_gathered=False)
        del hidden
        if needed[0]:
            d_x = product(d_gates, (w1, u1, w3, u3), plan, len(x), gathered=False)
        if any(needed[index] for index in (1, 3, 4, 6)):
            (d_w1, d_w3), (d_u1, d_u3) = weight_gradients(d_gates, x, plan, g_gathered=False)
        return d_x, d_w1, d_w2, d_w3, d_u1, d_u2, d_u3, None


def masked_ffn(
    x: torch.Tensor,
    w1: torch.Tensor,
    w2: torch.Tensor,
    w3: torch.Tensor,
    u1: torch.Tensor,
    u2: torch.Tensor,
    u3: torch.Tensor,
    mask: torch.Tensor,
) -> torch.Tensor:
    """Return w2(silu(w1 x) * w3 x) for the tokens of the mask; the others take u1, u2 and u3.

    x: [tokens, width]; w1, w3, u1, u3: [inner, width]; w2, u2: [width, inner]; mask: bool [tokens].
    Returns x's shape and dtype.
    """
    return _MaskedFFN.apply(x, w1, w2, w3, u1, u2, u3, mask)
