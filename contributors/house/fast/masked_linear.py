"""Tokens sorted by kind on the device; gathered tiles, one product a token."""

import torch
from torch.compiler import is_compiling

from .forms import height_of
from .gradients import weight_gradients
from .operators import refuse_second_derivative, traced, unused
from .partition import Partition, Sorted, check, empty_sorted, kept_plan, sort
from .products import product
from .rows import kept, rows_for
from .sequence import Direction


@Direction
def _forward(s, tokens, tile, x, w_v, w_t, mask, order):
    """Plan the output [tokens, out], x's packed copy, if there is one, and a new mask's order."""
    _check(tokens, x, w_v, w_t, mask)
    new = sort(s, tile, mask) if mask else None
    plan = Sorted.of(tokens, tile, new or order)
    x = rows_for(s, plan, x, w_v.shape[0])
    return product(s, x, (w_v.T, w_t.T), plan), x.packed, new


@Direction
def _backward(s, tokens, tile, of_x, of_weights, g, x, w_v, w_t, packed, order):
    """Plan d_x [tokens, in] and d_w [2, out, in]; None for what is not wanted."""
    plan = Sorted.of(tokens, tile, order)
    both = of_x and of_weights
    g = rows_for(s, plan, g, w_v.shape[1], launches=1 + both)
    d_x = product(s, g, (w_v, w_t), plan, triggers=both) if of_x else None
    d_w = weight_gradients(s, g, kept(plan, x, packed), plan, early=both) if of_weights else None
    return d_x, d_w


def _check(tokens, x, w_v, w_t, mask):
    weight = w_v.shape[0], x.shape[1]
    check("masked_linear", tokens, mask, x, w_v=(w_v, weight), w_t=(w_t, weight))


def _run_backward(plan, of_x, of_weights, *tensors):
    return _backward((plan.tokens, plan.tile, of_x, of_weights), *tensors, plan.sorted)


class _MaskedLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w_v, w_t, mask):
        ctx.plan = kept_plan(mask, height_of(x, w_v))
        out, packed = ctx.plan.forward(_forward, (), x, w_v, w_t, mask)
        ctx.save_for_backward(x, w_v, w_t, packed)
        return out

    @staticmethod
    def backward(ctx, g):
        refuse_second_derivative("masked_linear")
        of_x, of_v, of_t, _ = ctx.needs_input_grad
        d_x, d_w = _run_backward(ctx.plan, of_x, of_v or of_t, g, *ctx.saved_tensors)
        d_v, d_t = (None, None) if d_w is None else d_w.unbind()
        return d_x, d_v, d_t, None


# Function.apply less its preparation for torch.func, which never comes here
_apply = super(torch.autograd.Function, _MaskedLinear).apply


def masked_linear(
    x: torch.Tensor, w_v: torch.Tensor, w_t: torch.Tensor, mask: torch.Tensor
) -> torch.Tensor:
    """Return x @ w_v.T for the tokens of the mask and x @ w_t.T for the others.

    x: [tokens, in]; w_v, w_t: [out, in]; mask: bool [tokens]. Returns [tokens, out] in x's dtype.

    Raises:
        ValueError: The shapes or the dtypes do not fit.
    """
    if traced():
        call = x, w_v, w_t, mask
        return _operator(*call)[0] if is_compiling() else _MaskedLinear.apply(*call)
    if torch.is_grad_enabled() and (x.requires_grad or w_v.requires_grad or w_t.requires_grad):
        return _apply(x, w_v, w_t, mask)
    return kept_plan(mask, height_of(x, w_v)).forward(_forward, (), x, w_v, w_t, mask)[0]


# --- torch.compile takes each direction as one operator, and looks into neither -------------------
# The order of the tokens goes from one to the other as a tensor, and none is kept for a next call:
# CUDA graphs (mode="reduce-overhead") own the memory of all that an operator makes.


@torch.library.custom_op(unused("masked_linear"), mutates_args=())
def _operator(
    x: torch.Tensor, w_v: torch.Tensor, w_t: torch.Tensor, mask: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    plan = Partition(x.shape[0], height_of(x, w_v))
    return plan.forward(_forward, (), x, w_v, w_t, mask)[0], plan.sorted


@_operator.register_fake
def _(x, w_v, w_t, mask):
    height = height_of(x, w_v)
    _check(mask.numel(), x, w_v, w_t, mask)
    return x.new_empty(x.shape[0], w_v.shape[0]), empty_sorted(mask, height)


@torch.library.custom_op(unused("masked_linear_backward"), mutates_args=())
def _backward_operator(
    g: torch.Tensor, x: torch.Tensor, w_v: torch.Tensor, w_t: torch.Tensor, order: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    plan = Partition(x.shape[0], height_of(x, w_v), order)
    return tuple(_run_backward(plan, True, True, g, x, w_v, w_t, None))


@_backward_operator.register_fake
def _(g, x, w_v, w_t, order):
    return x.new_empty(x.shape), x.new_empty(2, *w_v.shape)


def _save(ctx, inputs, output):
    ctx.save_for_backward(*inputs[:-1], output[1])
    ctx.mark_non_differentiable(output[1])


def _differentiate(ctx, g, _):
    refuse_second_derivative("masked_linear")
    d_x, (d_v, d_t) = _backward_operator(g, *ctx.saved_tensors)
    return d_x, d_v, d_t, None


_operator.register_autograd(_differentiate, setup_context=_save)
