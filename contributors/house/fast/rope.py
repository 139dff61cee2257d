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

from .launch import Recorded
from .operators import backward_call, differentiable, traceable, traced, version
from .rope_kernel import rope_kernel, rope_qk_kernel
from .rope_sizes import blocks_of, check, constants_of, require_contiguous_features, table_of

Pair = tuple[torch.Tensor, torch.Tensor]


def _launch(launch, *arguments, in_place=False):
    """Return t turned; in place, nothing."""
    *how, t, freqs, starts, ends = arguments
    check(t, freqs, starts, ends, *how)
    require_contiguous_features(t, freqs)
    out = t if in_place else t.new_empty(t.shape)
    if 0 not in t.shape:
        table = table_of(t, how[0], as_heads=starts is None)
        blocks = blocks_of(table, t.dtype.itemsize)
        launch(
            rope_kernel, (blocks.programs,), t, freqs, out, starts, ends,
            table.tokens, table.columns, table.heads, blocks.count, table.length,
            0 if ends is None else ends.shape[0] - 1, *table.strides, freqs.stride()[0], how[3],
            **constants_of(table, freqs, ends, *how), **blocks.constants,
            FIRST=0, IN_PLACE=in_place, num_warps=blocks.warps,
        )  # fmt: skip
    return () if in_place else (out,)


@Recorded
def _map_qk(launch, *arguments):
    """Return q and k turned."""
    *how, q, k, freqs, starts, ends = arguments
    for t in (q, k):
        check(t, freqs, starts, ends, *how)
    of_q, of_k = ((*t.shape[:-2], t.shape[-1], t.dtype) for t in (q, k))
    if of_q != of_k:
        q, k = ((*t.shape, t.dtype) for t in (q, k))
        raise ValueError(f"q and k may differ in their numbers of heads alone, not {q} and {k}")
    require_contiguous_features(q, k, freqs)
    if 0 in q.shape or 0 in k.shape:
        return [_launch(launch, *how, t, freqs, starts, ends)[0] for t in (q, k)]
    outs = [t.new_empty(t.shape) for t in (q, k)]
    of_q, of_k = (table_of(t, how[0], as_heads=False) for t in (q, k))
    blocks, k_blocks = (blocks_of(each, q.dtype.itemsize, alone=False) for each in (of_q, of_k))
    count = blocks.count + k_blocks.count
    programs = blocks.programs // blocks.count * count
    launch(
        rope_qk_kernel, (programs,), q, k, freqs, *outs, starts, ends,
        of_q.tokens, of_q.columns, of_q.heads, of_k.heads, count, of_q.length,
        0 if ends is None else ends.shape[0] - 1, *of_q.strides, *of_k.strides,
        freqs.stride()[0], how[3], **constants_of(of_q, freqs, ends, *how),
        BLOCK_T=blocks.constants["BLOCK_T"], BLOCK=blocks.constants["BLOCK"],
        Q_BLOCK_H=blocks.constants["BLOCK_H"], Q_BLOCKS=blocks.count,
        K_BLOCK_H=k_blocks.constants["BLOCK_H"], num_warps=blocks.warps,
    )  # fmt: skip
    return outs


_map = Recorded(_launch)
_map_in_place = Recorded(functools.partial(_launch, in_place=True))
_turn, _turn_qk = differentiable(_map), differentiable(_map_qk)
_operator = traceable(
    "rope",
    "(Tensor t, Tensor freqs, Tensor? starts, Tensor? ends, str tensor_format, bool interleaved,"
    " int cp_size, int cp_rank, bool transposed) -> Tensor",
    _map, check, rope_kernel, instead="t has a dimension for batches, and heads may hold another",
)  # fmt: skip


def _call_of(
    freqs, tensor_format="sbhd", interleaved=False, start_positions=None, cu_seqlens=None,
    cp_size=1, cp_rank=0,
):  # fmt: skip
    """Return a call of rope: how, freqs, start_positions and cu_seqlens."""
    if freqs.requires_grad and torch.is_grad_enabled():
        raise ValueError("rope: freqs gets no gradient; pass freqs.detach()")
    if start_positions is not None:
        if cp_size > 1:
            raise NotImplementedError("start_positions with context parallelism")
        start_positions = start_positions.contiguous()
    if cu_seqlens is not None:
        cu_seqlens = cu_seqlens.contiguous()
    how = tensor_format, bool(interleaved), cp_size, cp_rank, False
    return how, freqs, start_positions, cu_seqlens


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
    options = interleaved, start_positions, cu_seqlens, cp_size, cp_rank
    call = _call_of(freqs, tensor_format, *options)
    return _operator(t, *call[1:], *call[0]) if traced() else _turn(call, t)[0]


def rope_qk(q: torch.Tensor, k: torch.Tensor, freqs: torch.Tensor, **options: Any) -> Pair:
    """Return `rope(q, freqs, **options)` and `rope(k, freqs, **options)` by one launch.

    q: as t of `rope`, for example [s, b, 32, d]; k: the same but for its heads, [s, b, 8, d].
    Where torch traces the call (`operators.py`) it is two launches.

    Raises:
        ValueError: q and k differ in more than their heads, or `rope` raises it.
    """
    if traced():
        return rope(q, freqs, **options), rope(k, freqs, **options)
    return _turn_qk(_call_of(freqs, **options), q, k)


class _InPlace(torch.autograd.Function):
    @staticmethod
    def forward(ctx, t, call):
        ctx.call, ctx.version = call, version(call)
        ctx.mark_dirty(t)
        _map_in_place(call[0], t, *call[1:])
        return t

    @staticmethod
    def backward(ctx, grad):
        return *_turn(backward_call(ctx), grad), None


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
    call = _call_of(freqs, **options)
    if not (t.requires_grad and torch.is_grad_enabled()):
        torch.autograd.graph.increment_version(t)
        _map_in_place(call[0], t, *call[1:])
        return t
    owner = t._base if t._is_view() else t
    if owner.is_leaf and owner.requires_grad:
        raise RuntimeError("a leaf that requires a gradient cannot be turned in place")
    return _InPlace.apply(t, call)
