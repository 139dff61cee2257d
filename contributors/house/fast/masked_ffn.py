"""Tokens sorted by kind on the device; the gate and its gradient in the products' epilogues."""

import functools

import torch
from torch.compiler import is_compiling

from .forms import height_of
from .gated import down_gradient, up
from .gradients import weight_gradients
from .operators import refuse_second_derivative, traced, unused
from .partition import Partition, Sorted, check, empty_sorted, kept_plan, rows_of_plan, sort
from .products import product
from .rows import SORTED, Rows, kept, pack, rows_for
from .sequence import Direction


@functools.partial(Direction, pairs=((1, 3), (4, 6)))
def _forward(s, tokens, tile, keep, to_w3, to_u3, x, w1, w2, w3, u1, u2, u3, mask, order):
    """Plan the output [tokens, width], the gates [2, rows, inner] to keep, x's packed copy, if
    there is one, and a new mask's order.
    """
    _check(tokens, x, w1, w2, w3, u1, u2, u3, mask)
    new = sort(s, tile, mask) if mask else None
    plan = Sorted.of(tokens, tile, new or order)
    x = rows_for(s, plan, x, 2 * w1.shape[0])
    weights = (w1.T, w3.T, u1.T, u3.T)
    hidden, gates = up(s, x, weights, (to_w3, to_u3), plan, keep)
    return product(s, Rows(hidden, SORTED), (w2.T, u2.T), plan), gates, x.packed, new


@Direction
def _backward_down(s, tokens, tile, of_down, g, w2, u2, gates, order):
    """Plan the gates' gradient [2, rows, inner], and d_w2 and d_u2 [2, width, inner], or None."""
    plan = Sorted.of(tokens, tile, order)
    (g,) = pack(s, plan, Rows(g))
    d_gates, hidden = down_gradient(s, g, (w2, u2), gates, plan)
    return d_gates, weight_gradients(s, g, Rows(hidden, SORTED), plan) if of_down else None


@Direction
def _backward_up(s, tokens, tile, of_x, of_up, d_gates, x, w1, w3, u1, u3, packed, order):
    """Plan d_x and the gradients of w1 and w3, u1 and u3 [4, inner, width], or None."""
    plan, d_gates = Sorted.of(tokens, tile, order), Rows(d_gates, SORTED)
    d_x = product(s, d_gates, (w1, u1, w3, u3), plan) if of_x else None
    d_up = weight_gradients(s, d_gates, kept(plan, x, packed), plan) if of_up else None
    return d_x, d_up


def _height(x, w1):
    return height_of(x, w1, weights=2)


def _check(tokens, x, w1, w2, w3, u1, u2, u3, mask):
    up, down = (w1.shape[0], x.shape[1]), (x.shape[1], w1.shape[0])
    weights = {"w1": (w1, up), "w2": (w2, down), "w3": (w3, up)}
    weights |= {"u1": (u1, up), "u2": (u2, down), "u3": (u3, up)}
    check("masked_ffn", tokens, mask, x, **weights)


def _run_backward(plan, of_x, of_up, of_down, g, x, w1, w2, w3, u1, u2, u3, gates, packed):
    """Return d_x, those of w1 and w3 [4, inner, width], and of w2 [2, width, inner], or None.

    Two directions, so that the memory of g's copy and of hidden is free in the second one.
    """
    how, order = (plan.tokens, plan.tile), plan.sorted
    d_gates, d_down = _backward_down((*how, of_down), g, w2, u2, gates, order)
    if not (of_x or of_up):
        return None, None, d_down
    d_x, d_up = _backward_up((*how, of_x, of_up), d_gates, x, w1, w3, u1, u3, packed, order)
    return d_x, d_up, d_down


def _by_argument(d_x, d_up, d_down):
    """Return the gradients in the order of the arguments."""
    w1, w3, u1, u3 = [None] * 4 if d_up is None else d_up.unbind()
    w2, u2 = (None, None) if d_down is None else d_down.unbind()
    return d_x, w1, w2, w3, u1, u2, u3, None


class _MaskedFFN(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w1, w2, w3, u1, u2, u3, mask):
        tensors = x, w1, w2, w3, u1, u2, u3
        ctx.plan = kept_plan(mask, _height(x, w1))
        out, gates, packed = ctx.plan.forward(_forward, (True,), *tensors, mask)
        ctx.save_for_backward(*tensors, gates, packed)
        return out

    @staticmethod
    def backward(ctx, g):
        refuse_second_derivative("masked_ffn")
        x, w1, w2, w3, u1, u2, u3, _ = ctx.needs_input_grad
        wanted = x, w1 or w3 or u1 or u3, w2 or u2
        return _by_argument(*_run_backward(ctx.plan, *wanted, g, *ctx.saved_tensors))


# Function.apply less its preparation for torch.func, which never comes here
_apply = super(torch.autograd.Function, _MaskedFFN).apply


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

    Raises:
        ValueError: The shapes or the dtypes do not fit.
    """
    tensors = x, w1, w2, w3, u1, u2, u3
    if traced():
        return _operator(*tensors, mask)[0] if is_compiling() else _MaskedFFN.apply(*tensors, mask)
    if torch.is_grad_enabled() and any(each.requires_grad for each in tensors):
        return _apply(*tensors, mask)
    return kept_plan(mask, _height(x, w1)).forward(_forward, (False,), *tensors, mask)[0]


# --- torch.compile takes each direction as one operator, and looks into neither -------------------
# The order of the tokens goes from one to the other as a tensor; see masked_linear.py.

Tensor = torch.Tensor


@torch.library.custom_op(unused("masked_ffn"), mutates_args=())
def _operator(
    x: Tensor, w1: Tensor, w2: Tensor, w3: Tensor, u1: Tensor, u2: Tensor, u3: Tensor, mask: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    plan = Partition(x.shape[0], _height(x, w1))
    out, gates, _ = plan.forward(_forward, (True,), x, w1, w2, w3, u1, u2, u3, mask)
    return out, gates, plan.sorted


@_operator.register_fake
def _(x, w1, w2, w3, u1, u2, u3, mask):
    height = _height(x, w1)
    _check(mask.numel(), x, w1, w2, w3, u1, u2, u3, mask)
    gates = x.new_empty(2, rows_of_plan(x.shape[0], height), w1.shape[0])
    return x.new_empty(x.shape), gates, empty_sorted(mask, height)


@torch.library.custom_op(unused("masked_ffn_backward"), mutates_args=())
def _backward_operator(
    g: Tensor, x: Tensor, w1: Tensor, w2: Tensor, w3: Tensor, u1: Tensor, u2: Tensor, u3: Tensor,
    gates: Tensor, order: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    plan, wanted = Partition(x.shape[0], _height(x, w1), order), (True, True, True)
    return _run_backward(plan, *wanted, g, x, w1, w2, w3, u1, u2, u3, gates, None)


@_backward_operator.register_fake
def _(g, x, w1, w2, w3, u1, u2, u3, gates, order):
    return x.new_empty(x.shape), x.new_empty(4, *w1.shape), x.new_empty(2, *w2.shape)


def _save(ctx, inputs, output):
    ctx.save_for_backward(*inputs[:-1], *output[1:])
    ctx.mark_non_differentiable(*output[1:])


def _differentiate(ctx, g, *_):
    refuse_second_derivative("masked_ffn")
    return _by_argument(*_backward_operator(g, *ctx.saved_tensors))


_operator.register_autograd(_differentiate, setup_context=_save)
