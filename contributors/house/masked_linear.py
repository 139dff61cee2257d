"""Tokens sorted by kind on the device; gathered tiles, one product a token."""

import torch
from forms import height_of
from gradients import weight_gradients
from operators import unused
from partition import plan_of
from products import product
from rows import Rows, kept, pack, rows_for


def _plan(x, w_v, mask):
    return plan_of(mask, height_of(*x.shape, w_v.shape[0]))


def _forward(x, w_v, w_t, plan):
    """Return the output [tokens, out] and x's packed copy, if there is one."""
    x = rows_for(plan, x, w_v.shape[0])
    return product(x, (w_v.T, w_t.T), plan), x.packed


def _backward(g, x, w_v, w_t, packed, plan, of_x, of_weights):
    """Return d_x [tokens, in] and d_w [2, out, in], or None for what is not wanted."""
    if of_weights:
        g, x = pack(plan, Rows(g), kept(x, packed))
    else:
        g = rows_for(plan, g, w_v.shape[1])
    d_x = product(g, (w_v, w_t), plan) if of_x else None
    d_w = weight_gradients(g, x, plan)[:, 0] if of_weights else None
    return d_x, d_w


class _MaskedLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w_v, w_t, mask):
        ctx.plan = _plan(x, w_v, mask)
        out, packed = _forward(x, w_v, w_t, ctx.plan)
        ctx.save_for_backward(x, w_v, w_t, packed)
        return out

    @staticmethod
    def backward(ctx, g):
        of_x, *of_weights, _ = ctx.needs_input_grad
        d_x, d_w = _backward(g, *ctx.saved_tensors, ctx.plan, of_x, any(of_weights))
        return d_x, *(d_w if d_w is not None else (None, None)), None


def masked_linear(
    x: torch.Tensor, w_v: torch.Tensor, w_t: torch.Tensor, mask: torch.Tensor
) -> torch.Tensor:
    """Return x @ w_v.T for the tokens of the mask and x @ w_t.T for the others.

    x: [tokens, in]; w_v, w_t: [out, in]; mask: bool [tokens]. Returns [tokens, out] in x's dtype.
    """
    if torch.compiler.is_compiling():
        return _operator(x, w_v, w_t, mask)
    return _MaskedLinear.apply(x, w_v, w_t, mask)


# --- torch.compile takes each direction as one operator, and looks into neither -------------------


@torch.library.custom_op(unused("masked_linear"), mutates_args=())
def _operator(
    x: torch.Tensor, w_v: torch.Tensor, w_t: torch.Tensor, mask: torch.Tensor
) -> torch.Tensor:
    return _forward(x, w_v, w_t, _plan(x, w_v, mask))[0]


@_operator.register_fake
def _(x, w_v, w_t, mask):
    return x.new_empty(x.shape[0], w_v.shape[0])


@torch.library.custom_op(unused("masked_linear_backward"), mutates_args=())
def _backward_operator(
    g: torch.Tensor, x: torch.Tensor, w_v: torch.Tensor, w_t: torch.Tensor, mask: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    return _backward(g, x, w_v, w_t, None, _plan(x, w_v, mask), True, True)


@_backward_operator.register_fake
def _(g, x, w_v, w_t, mask):
    return x.new_empty(x.shape), x.new_empty(2, *w_v.shape)


def _save(ctx, inputs, output):
    ctx.save_for_backward(*inputs)


def _differentiate(ctx, g):
    d_x, (d_v, d_t) = _backward_operator(g, *ctx.saved_tensors)
    return d_x, d_v, d_t, None


_operator.register_autograd(_differentiate, setup_context=_save)
