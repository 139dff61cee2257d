"""Tokens sorted by kind on the device; gathered tiles, one product a token."""

import torch
from gradients import weight_gradients
from partition import partition
from products import product
from tiles import ROWS


def _forward(x, w_v, w_t, mask):
    plan = partition(mask, ROWS)
    return product(x, (w_v.T, w_t.T), plan, len(x)), plan


class _MaskedLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w_v, w_t, mask):
        out, plan = _forward(x, w_v, w_t, mask)
        ctx.save_for_backward(x, w_v, w_t)
        ctx.plan = plan
        return out

    @staticmethod
    def backward(ctx, g):
        x, w_v, w_t = ctx.saved_tensors
        d_x, d_v, d_t = None, None, None
        if ctx.needs_input_grad[0]:
            d_x = product(g, (w_v, w_t), ctx.plan, len(x))
        if any(ctx.needs_input_grad[1:3]):
            (d_v,), (d_t,) = weight_gradients(g, x, ctx.plan)
        return d_x, d_v, d_t, None


def masked_linear(
    x: torch.Tensor, w_v: torch.Tensor, w_t: torch.Tensor, mask: torch.Tensor
) -> torch.Tensor:
    """Return x @ w_v.T for the tokens of the mask and x @ w_t.T for the others.

    x: [tokens, in]; w_v, w_t: [out, in]; mask: bool [tokens]. Returns [tokens, out] in x's dtype.
    """
    if not len(x):
        return torch.nn.functional.linear(x, w_v) + torch.nn.functional.linear(x, w_t)
    return _MaskedLinear.apply(x, w_v, w_t, mask)
