"""RoPE: of one tensor, in place, and of the queries with the keys in one launch.

    o = rope(t, freqs)
    rope_(t, freqs)               # t.copy_(rope(t, freqs)), without a second tensor
    q, k = rope_qk(q, k, freqs)   # rope(q, freqs), rope(k, freqs)

The queries and keys may be slices of one tensor [s, b, heads of q + heads of k + heads of v, d],
which is read where it lies.
"""

import functools
from typing import Any

import torch
import triton

from .launch import Recorded
from .operators import linear, traced
from .rope_call import (
    blocks_of,
    call_of,
    check,
    constants_of,
    require_contiguous_features,
    table_of,
    transposed,
    version,
)
from .rope_kernel import rope_kernel, rope_qk_kernel

Pair = tuple[torch.Tensor, torch.Tensor]


def _launch(
    s, tensor_format, interleaved, cp_size, cp_rank, transposed, t, freqs, starts, ends,
    in_place=False,
):  # fmt: skip
    """Return t turned; in place, nothing."""
    how = tensor_format, interleaved, cp_size, cp_rank, transposed
    check(t, freqs, starts, ends, *how)
    require_contiguous_features(t, freqs)
    out = t if in_place else s.empty(*t.shape)
    if 0 not in t.shape:
        table = table_of(t, tensor_format, as_heads=starts is None)
        blocks = blocks_of(table, t.dtype.itemsize)
        s.launch(
            rope_kernel, (triton.cdiv(table.tokens, blocks.tokens) * blocks.count,),
            t, freqs, out, starts, ends,
            table.tokens, table.columns, table.heads, blocks.count, table.length,
            0 if ends is None else ends.shape[0] - 1,
            *table.strides, freqs.stride()[0], cp_rank,
            **constants_of(how, table.width, freqs, ends),
            **blocks.constants, BLOCK_T=blocks.tokens, FIRST=0, IN_PLACE=in_place,
            num_warps=blocks.warps,
        )  # fmt: skip
    return () if in_place else (out,)


def _launch_qk(
    s, tensor_format, interleaved, cp_size, cp_rank, transposed, q, k, freqs, starts, ends
):
    """Return q and k turned."""
    how, both = (tensor_format, interleaved, cp_size, cp_rank, transposed), (q, k)
    for t in both:
        check(t, freqs, starts, ends, *how)
    require_contiguous_features(q, k, freqs)
    of_q, of_k = ((*t.shape[:-2], t.shape[-1], t.dtype) for t in both)
    if of_q != of_k:
        q, k = ((*t.shape, t.dtype) for t in both)
        raise ValueError(f"q and k may differ in their numbers of heads alone, not {q} and {k}")
    if 0 in q.shape or 0 in k.shape:
        return [_launch(s, *how, t, freqs, starts, ends)[0] for t in both]
    table, of_k = (table_of(t, tensor_format, as_heads=False) for t in both)
    q_blocks, k_blocks = (blocks_of(each, q.dtype.itemsize, alone=False) for each in (table, of_k))
    blocks, outs = q_blocks.count + k_blocks.count, [s.empty(*t.shape) for t in both]
    s.launch(
        rope_qk_kernel, (triton.cdiv(table.tokens, q_blocks.tokens) * blocks,),
        q, k, freqs, *outs, starts, ends,
        table.tokens, table.columns, table.heads, of_k.heads, blocks, table.length,
        0 if ends is None else ends.shape[0] - 1,
        *table.strides, *of_k.strides, freqs.stride()[0], cp_rank,
        **constants_of(how, table.width, freqs, ends),
        BLOCK_T=q_blocks.tokens, BLOCK=q_blocks.constants["BLOCK"],
        Q_BLOCK_H=q_blocks.constants["BLOCK_H"], Q_BLOCKS=q_blocks.count,
        K_BLOCK_H=k_blocks.constants["BLOCK_H"], num_warps=q_blocks.warps,
    )  # fmt: skip
    return outs


_turn, _turn_qk = Recorded(_launch), Recorded(_launch_qk)
_turn_in_place = Recorded(functools.partial(_launch, in_place=True))

_operator = linear(
    "rope",
    "(Tensor t, Tensor freqs, Tensor? starts, Tensor? ends, str tensor_format, bool interleaved,"
    " int cp_size, int cp_rank, bool transposed) -> Tensor",
    tensors=4,
    map=_turn,
    check=check,
    kernel=rope_kernel,
    instead="t has a dimension for batches, and heads may hold another",
)


class _Rope(torch.autograd.Function):
    @staticmethod
    def forward(ctx, t, call):
        ctx.call, ctx.version = call, version(call)
        how, *tensors = call
        return _turn(how, t, *tensors)[0]

    @staticmethod
    def backward(ctx, grad):
        return _turned(grad, transposed(ctx)), None


# Function.apply less its preparation for torch.func, which never comes here
_apply = super(torch.autograd.Function, _Rope).apply


def _turned(t, call):
    """Return t turned, with an autograd node only where a gradient is due."""
    if t.requires_grad and torch.is_grad_enabled():
        return _apply(t, call)
    how, *tensors = call
    return _turn(how, t, *tensors)[0]


def rope(
    t: torch.Tensor,
    freqs: torch.Tensor,
    *,
    tensor_format: str = "sbhd",
    interleaved: bool = False,
    start_positions: torch.Tensor | None = None,
    cu_seqlens: torch.Tensor | None = None,
    cp_size: int = 1,
    cp_rank: int = 0,
) -> torch.Tensor:
    """Turn the first d2 features of every token by the angles of its position.

    t: [s, b, h, d] (sbhd), [b, s, h, d] (bshd) or [tokens, h, d] (thd, with cu_seqlens [b + 1]);
    freqs: [s2, 1, 1, d2], float32; start_positions: [b]. Returns t's shape and dtype.
    cp_size, cp_rank: the number of context-parallel ranks and this one; t holds its two chunks of
    each sequence.

    Raises:
        ValueError: The shapes, the dtypes and the options do not fit, or freqs requires a gradient.
            No value of start_positions or cu_seqlens is looked at: the GPU would be waited for.
    """
    call = call_of(freqs, tensor_format, interleaved, start_positions, cu_seqlens, cp_size, cp_rank)
    if traced():
        how, *tensors = call
        return _operator(t, *tensors, *how)
    return _turned(t, call)


class _RopeQk(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, call):
        ctx.call, ctx.version = call, version(call)
        how, *tensors = call
        return tuple(_turn_qk(how, q, k, *tensors))

    @staticmethod
    def backward(ctx, q_grad, k_grad):
        return *_turned_qk(q_grad, k_grad, transposed(ctx)), None


def _turned_qk(q, k, call):
    """Return q and k turned, with an autograd node only where a gradient is due."""
    if (q.requires_grad or k.requires_grad) and torch.is_grad_enabled():
        return _RopeQk.apply(q, k, call)
    how, *tensors = call
    return tuple(_turn_qk(how, q, k, *tensors))


def rope_qk(q: torch.Tensor, k: torch.Tensor, freqs: torch.Tensor, **options: Any) -> Pair:
    """Return `rope(q, freqs, **options)` and `rope(k, freqs, **options)` by one launch.

    q: as t of `rope`, for example [s, b, 32, d]; k: the same but for its heads, [s, b, 8, d].
    Where torch traces the call (`operators.py`) it is two launches.

    Raises:
        ValueError: q and k differ in more than their heads, or `rope` raises it.
    """
    if traced():
        return rope(q, freqs, **options), rope(k, freqs, **options)
    return _turned_qk(q, k, call_of(freqs, **options))


class _RopeInPlace(torch.autograd.Function):
    @staticmethod
    def forward(ctx, t, call):
        ctx.call, ctx.version = call, version(call)
        ctx.mark_dirty(t)
        how, *tensors = call
        _turn_in_place(how, t, *tensors)
        return t

    @staticmethod
    def backward(ctx, grad):
        return _turned(grad, transposed(ctx)), None


def rope_(t: torch.Tensor, freqs: torch.Tensor, **options: Any) -> torch.Tensor:
    """Turn t in place as `t.copy_(rope(t, freqs, **options))` does; return t.

    Raises:
        RuntimeError: t is a leaf that requires a gradient, its elements share memory, or it is of
            inference mode, which is over.
    """
    if traced() or t.stride(-1) != 1 or 0 in t.stride():
        return t.copy_(rope(t, freqs, **options))
    if t.is_inference() and not torch.is_inference_mode_enabled():
        raise RuntimeError("a tensor of inference mode cannot be turned in place outside of it")
    call = call_of(freqs, **options)
    if not (t.requires_grad and torch.is_grad_enabled()):
        torch.autograd.graph.increment_version(t)
        how, *tensors = call
        _turn_in_place(how, t, *tensors)
        return t
    owner = t._base if t._is_view() else t
    if owner.is_leaf and owner.requires_grad:
        raise RuntimeError("a leaf that requires a gradient cannot be turned in place")
    return _RopeInPlace.apply(t, call)
