"""RoPE as models want it: in place, and the queries with the keys in one launch.

For example:

    from fast import rope_, rope_qk

    rope_(t, freqs)               # t.copy_(rope(t, freqs)), without a second tensor
    q, k = rope_qk(q, k, freqs)   # rope(q, freqs), rope(k, freqs)

Both take the options of `rope`, and its kernel does the work. The queries and keys may be slices of
one tensor [s, b, heads of q + heads of k + heads of v, d], which is read where it lies.
"""

import functools
from typing import Any

import torch
import triton
import triton.language as tl

from .launch import Plan
from .launching import Like, arguments, call_of, check, dense, described, transposed, version
from .operators import traced
from .rope import _launch, _rope_kernel, _turned, rope

Pair = tuple[torch.Tensor, torch.Tensor]


@triton.jit
def _rope_qk_kernel(
    q, k, freqs, q_out, k_out, start_positions, cu_seqlens,
    tokens, columns, q_heads, blocks, length, sequences,
    q_row, q_column, q_head, freqs_row, CP_SIZE: tl.constexpr, cp_rank,
    k_heads, k_row, k_column, k_head,
    WIDTH: tl.constexpr, ROTARY: tl.constexpr, SEQ_FIRST: tl.constexpr,
    INTERLEAVED: tl.constexpr, TRANSPOSED: tl.constexpr,
    BLOCK_T: tl.constexpr, Q_BLOCK_H: tl.constexpr, BLOCK: tl.constexpr,
    Q_BLOCKS: tl.constexpr, K_BLOCK_H: tl.constexpr,
):  # fmt: skip
    """Turn heads of q in the first Q_BLOCKS of a token's blocks, and heads of k in the others."""
    if tl.program_id(0) % blocks < Q_BLOCKS:
        _rope_kernel(
            q, freqs, q_out, start_positions, cu_seqlens,
            tokens, columns, q_heads, blocks, length, sequences, q_row, q_column, q_head,
            freqs_row, CP_SIZE, cp_rank, WIDTH, ROTARY, SEQ_FIRST, INTERLEAVED, TRANSPOSED,
            BLOCK_T, Q_BLOCK_H, BLOCK, 0, WIDTH, 1, 0, False,
        )  # fmt: skip
    else:
        _rope_kernel(
            k, freqs, k_out, start_positions, cu_seqlens,
            tokens, columns, k_heads, blocks, length, sequences, k_row, k_column, k_head,
            freqs_row, CP_SIZE, cp_rank, WIDTH, ROTARY, SEQ_FIRST, INTERLEAVED, TRANSPOSED,
            BLOCK_T, K_BLOCK_H, BLOCK, 0, WIDTH, 1, Q_BLOCKS, False,
        )  # fmt: skip


@functools.lru_cache(maxsize=1024)
def _plan_qk(
    q_shape, q_strides, q_dtype, k_shape, k_strides, k_dtype,
    freqs_shape, freqs_row, freqs_dtype, starts, ends, how, transposed,
):  # fmt: skip
    """Return the plan of a launch for both, None for no tokens."""
    for t in (Like(q_shape, q_dtype), Like(k_shape, k_dtype)):
        check(t, Like(freqs_shape, freqs_dtype), starts, ends, how)
    if (*q_shape[:-2], q_shape[-1], q_dtype) != (*k_shape[:-2], k_shape[-1], k_dtype):
        q, k = ((*shape, dtype) for shape, dtype in ((q_shape, q_dtype), (k_shape, k_dtype)))
        raise ValueError(f"q and k may differ in their numbers of heads alone, not {q} and {k}")
    if 0 in q_shape or 0 in k_shape:
        return None
    rest = freqs_shape, freqs_row, ends and ends.shape[0] - 1, how, transposed
    (programs,), q_rest, warps = arguments(q_shape, q_strides, q_dtype, *rest, False, alone=False)
    _, k_rest, _ = arguments(k_shape, k_strides, k_dtype, *rest, False, alone=False)
    tokens, columns, q_heads, q_blocks, *q_numbers = q_rest[:12]
    _, _, k_heads, k_blocks, _, _, *k_strides, _, _, _ = k_rest[:12]
    blocks, k_block_h = q_blocks + k_blocks, k_rest[18]
    numbers = (tokens, columns, q_heads, blocks, *q_numbers, k_heads, *k_strides)
    rest = (*numbers, *q_rest[12:20], q_blocks, k_block_h)
    return Plan(_rope_qk_kernel, (programs // q_blocks * blocks,), rest, num_warps=warps)


def _launch_qk(q, k, freqs, starts, ends, how, transposed):
    """Return q and k turned."""
    q, k, freqs = dense(q), dense(k), dense(freqs)
    q_out, k_out = (torch.empty_like(x, memory_format=torch.contiguous_format) for x in (q, k))
    of_both = q.shape, q.stride(), q.dtype, k.shape, k.stride(), k.dtype
    of_freqs = freqs.shape, freqs.stride(0), freqs.dtype
    plan = _plan_qk(*of_both, *of_freqs, *described(starts, ends), how, transposed)
    if plan is not None:
        plan(q, k, freqs, q_out, k_out, starts, ends)
        return q_out, k_out
    return tuple(_launch(x, freqs, starts, ends, how, transposed) for x in (q, k))


class _RopeQk(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, call):
        ctx.call, ctx.version = call, version(call)
        return _launch_qk(q, k, *call)

    @staticmethod
    def backward(ctx, q_grad, k_grad):
        return *_turned_qk(q_grad, k_grad, transposed(ctx)), None


def _turned_qk(q, k, call):
    """Return q and k turned, with an autograd node only where a gradient is due."""
    if (q.requires_grad or k.requires_grad) and torch.is_grad_enabled():
        return _RopeQk.apply(q, k, call)
    return _launch_qk(q, k, *call)


def rope_qk(q: torch.Tensor, k: torch.Tensor, freqs: torch.Tensor, **options: Any) -> Pair:
    """Return `rope(q, freqs, **options)` and `rope(k, freqs, **options)` by one launch.

    q: as t of `rope`, for example [s, b, 32, d]; k: the same but for its heads, [s, b, 8, d].
    Where torch traces the call (`operators.py`) it is two launches.

    Raises:
        ValueError: q and k differ in more than their heads, or `rope` raises it.
    """
    if traced():
        return rope(q, freqs, **options), rope(k, freqs, **options)
    return _turned_qk(q, k, (*call_of(freqs, **options), False))


class _RopeInPlace(torch.autograd.Function):
    @staticmethod
    def forward(ctx, t, call):
        ctx.call, ctx.version = call, version(call)
        ctx.mark_dirty(t)
        return _launch(t, *call, in_place=True)

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
    call = (*call_of(freqs, **options), False)
    if not (t.requires_grad and torch.is_grad_enabled()):
        torch.autograd.graph.increment_version(t)
        return _launch(t, *call, in_place=True)
    owner = t._base if t._is_view() else t
    if owner.is_leaf and owner.requires_grad:
        raise RuntimeError("a leaf that requires a gradient cannot be turned in place")
    return _RopeInPlace.apply(t, call)
