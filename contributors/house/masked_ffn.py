"""Tokens sorted by kind on the device; the gate and its gradient in the products' epilogues."""

import torch
from forms import height_of
from gated import down_gradient, up
from gradients import weight_gradients
from operators import unused
from partition import plan_of, rows_of_plan
from products import product
from rows import SORTED, Rows, kept, pack, rows_for


def _plan(x, w1, mask):
    return plan_of(mask, height_of(*x.shape, 2 * w1.shape[0]))


def _forward(x, w1, w2, w3, u1, u2, u3, plan, keep):
    """Return the output [tokens, width], the gates [2, rows, inner] to keep, and x's copy."""
    x = rows_for(plan, x, 2 * w1.shape[0])
    hidden, gates = up(x, (w1.T, w3.T, u1.T, u3.T), plan, keep)
    return product(Rows(hidden, SORTED), (w2.T, u2.T), plan), gates, x.packed


def _backward(g, x, w1, w2, w3, u1, u2, u3, gates, packed, plan, of_x, of_up, of_down):
    """Return d_x, those of w1 and w3 [2, 2, inner, width], and of w2 [2, width, inner], or None."""
    g, *x = pack(plan, Rows(g), *([kept(x, packed)] if of_up else []))
    d_gates, hidden = down_gradient(g, (w2, u2), gates, plan)
    d_gates = Rows(d_gates, SORTED)
    d_down = weight_gradients(g, Rows(hidden, SORTED), plan)[:, 0] if of_down else None
    del g, hidden
    d_x = product(d_gates, (w1, u1, w3, u3), plan) if of_x else None
    d_up = weight_gradients(d_gates, *x, plan) if of_up else None
    return d_x, d_up, d_down


def _by_argument(d_x, d_up, d_down):
    """Return the gradients in the order of the arguments."""
    (w1, w3), (u1, u3) = d_up if d_up is not None else ((None, None), (None, None))
    w2, u2 = d_down if d_down is not None else (None, None)
    return d_x, w1, w2, w3, u1, u2, u3, None


class _MaskedFFN(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w1, w2, w3, u1, u2, u3, mask):
        ctx.plan, weights = _plan(x, w1, mask), (w1, w2, w3, u1, u2, u3)
        out, gates, packed = _forward(x, *weights, ctx.plan, any(ctx.needs_input_grad))
        ctx.save_for_backward(x, *weights, gates, packed)
        return out

    @staticmethod
    def backward(ctx, g):
        x, w1, w2, w3, u1, u2, u3, _ = ctx.needs_input_grad
        wanted = x, w1 or w3 or u1 or u3, w2 or u2
        return _by_argument(*_backward(g, *ctx.saved_tensors, ctx.plan, *wanted))


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
    if torch.compiler.is_compiling():
        return _operator(x, w1, w2, w3, u1, u2, u3, mask)[0]
    return _MaskedFFN.apply(x, w1, w2, w3, u1, u2, u3, mask)


# --- torch.compile takes each direction as one operator, and looks into neither -------------------

Tensor = torch.Tensor


@torch.library.custom_op(unused("masked_ffn"), mutates_args=())
def _operator(
    x: Tensor, w1: Tensor, w2: Tensor, w3: Tensor, u1: Tensor, u2: Tensor, u3: Tensor, mask: Tensor
) -> tuple[Tensor, Tensor]:
    return _forward(x, w1, w2, w3, u1, u2, u3, _plan(x, w1, mask), True)[:2]


@_operator.register_fake
def _(x, w1, w2, w3, u1, u2, u3, mask):
    return x.new_empty(x.shape), x.new_empty(
        2, rows_of_plan(x.shape[0], height_of(*x.shape, 2 * w1.shape[0])), w1.shape[0]
    )


@torch.library.custom_op(unused("masked_ffn_backward"), mutates_args=())
def _backward_operator(
    g: Tensor, x: Tensor, w1: Tensor, w2: Tensor, w3: Tensor, u1: Tensor, u2: Tensor, u3: Tensor,
    mask: Tensor, gates: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    plan = _plan(x, w1, mask)
    return _backward(g, x, w1, w2, w3, u1, u2, u3, gates, None, plan, True, True, True)


@_backward_operator.register_fake
def _(g, x, w1, w2, w3, u1, u2, u3, mask, gates):
    return x.new_empty(x.shape), x.new_empty(2, 2, *w1.shape), x.new_empty(2, *w2.shape)


def _save(ctx, inputs, output):
    ctx.save_for_backward(*inputs, output[1])
    ctx.mark_non_differentiable(output[1])


def _differentiate(ctx, g, _):
    return _by_argument(*_backward_operator(g, *ctx.saved_tensors))


_operator.register_autograd(_differentiate, setup_context=_save)
