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

from .launch import Recorded, Uneven
from .operators import backward_call, differentiable, traceable, traced, version
from .rope_kernel import rope_kernel

Pair = tuple[torch.Tensor, torch.Tensor]
LAYOUTS = {"sbhd": "[s, b, h, d]", "bshd": "[b, s, h, d]", "thd": "[tokens, h, d]"}


def check(t, freqs, starts, ends, *how):
    """Raise ValueError if there is no such call of rope; the kernel would read past a tensor.

    Values on the GPU are not looked at: those of start_positions and cu_seqlens are the caller's.
    """
    for fault in _faults(t, freqs, starts, ends, *how):
        raise ValueError(f"rope: {fault}")


def _faults(t, freqs, starts, ends, tensor_format, interleaved, cp_size, cp_rank, transposed):
    """Yield what is wrong with a call; where something is, what follows may raise."""
    shapes = f"t {list(t.shape)}, freqs {list(freqs.shape)}"
    if tensor_format not in LAYOUTS:
        yield f"tensor_format is {tensor_format!r}, not one of {', '.join(LAYOUTS)}"
    if (tensor_format == "thd") != (ends is not None):
        yield f"cu_seqlens belongs to thd, and thd needs it; tensor_format is {tensor_format!r}"
    if len(t.shape) != LAYOUTS[tensor_format].count(",") + 1:
        yield f"t {list(t.shape)} is not {LAYOUTS[tensor_format]} ({tensor_format})"
    if len(freqs.shape) != 4 or freqs.shape[1] != 1 or freqs.shape[2] != 1:
        yield f"freqs {list(freqs.shape)} is not [s2, 1, 1, d2]"
    if freqs.shape[-1] % 2 or freqs.shape[-1] > t.shape[-1]:
        yield f"freqs turns an even number of features, and no more than t has: {shapes}"
    if not (t.dtype.is_floating_point and freqs.dtype.is_floating_point):
        yield f"t and freqs are of floating point, not {t.dtype} and {freqs.dtype}"
    for name, each in (("start_positions", starts), ("cu_seqlens", ends)):
        known = each is None or each.dtype in (torch.int32, torch.int64)
        if not known or (each is not None and len(each.shape) != 1):
            yield f"{name} is a list of int32, not {list(each.shape)} of {each.dtype}"
    if not 0 <= cp_rank < cp_size:
        yield f"cp_rank {cp_rank} is not one of {cp_size} ranks"
    if ends is not None:
        sequences = ends.shape[0] - 1
        if sequences < 0 or (sequences == 0 and t.shape[0]):
            yield "cu_seqlens is [b + 1], from 0 to the number of tokens"
    else:
        at = tensor_format.index("s")
        length, sequences = t.shape[at], t.shape[1 - at]
        if cp_size > 1 and length % 2:
            yield f"with context parallelism t has two chunks of each sequence: {shapes}"
        if length * cp_size > freqs.shape[0]:
            yield f"freqs has fewer positions than the {cp_size} times {length} of t: {shapes}"
    if starts is not None and starts.shape[0] != sequences:
        yield f"start_positions is [b], not {list(starts.shape)}, where b is {sequences}"


def _sizes(heads, width, itemsize):
    """Return a program's tokens, BLOCK_T, heads of each, BLOCK_H, and warps.

    A program has about 4 KiB: more of them wait for memory at once than with 8 KiB, and fewer
    compute the same angles than with 2 KiB. A thread has at least one angle.
    """
    lines = triton.next_power_of_2(min(max(4096 // (width * itemsize), 1), 128))
    block_h = min(triton.next_power_of_2(heads), lines)
    block_t = lines // block_h
    return block_t, block_h, triton.next_power_of_2(min(max(block_t * width // 32, 1), 4))


def _turned(launch, how, tensors, freqs, starts, ends, in_place=False):
    """Return one tensor turned, or both of two by one launch; in place, nothing."""
    for each in tensors:
        check(each, freqs, starts, ends, *how)
    if uneven := [each for each in (*tensors, freqs) if each.stride()[-1] != 1]:
        raise Uneven(*uneven)
    outs = tensors if in_place else [each.new_empty(each.shape) for each in tensors]
    full = [each for each in zip(tensors, outs, strict=True) if 0 not in each[0].shape]
    both = len(full) == 2
    for t, out in full[:1] if both else full:
        k, k_out = full[1] if both else (None, None)
        _launch(launch, how, t, k, freqs, out, k_out, starts, ends, in_place)
    return () if in_place else outs


def _launch(launch, how, t, k, freqs, out, k_out, starts, ends, in_place):
    """Launch the kernel for t, and for k if it is not None; neither is empty."""
    tensor_format, interleaved, cp_size, cp_rank, transposed = how
    packed, seq_first = tensor_format == "thd", tensor_format != "bshd"
    # packed tokens are one column
    table, k_table = (x if x is None or not packed else x.unsqueeze(1) for x in (t, k))
    (rows, columns, heads, width), (*strides, _) = table.shape, table.stride()
    # int(): torch.compile may not know the sizes, and the kernel takes these as constants
    heads, width = int(heads), int(width)
    k_heads, *k_strides = (0,) * 4 if k is None else (k_table.shape[2], *k_table.stride()[:3])
    if k is starts is None and seq_first and not packed and strides[1] == heads * strides[2]:
        heads, columns = heads * columns, 1  # a row's tokens share angles: as heads of one
    block_t, block_h, warps = _sizes(heads, width, t.dtype.itemsize)
    blocks = triton.cdiv(heads, block_h) + triton.cdiv(k_heads, block_h)
    launch(
        rope_kernel, (triton.cdiv(rows * columns, block_t) * blocks,),
        t, k, freqs, out, k_out, starts, ends, rows, columns, heads, k_heads,
        ends.shape[0] - 1 if packed else 0, *strides, *k_strides, freqs.stride()[0], cp_rank,
        CP_SIZE=cp_size, WIDTH=width, ROTARY=int(freqs.shape[-1]), SEQ_FIRST=seq_first,
        INTERLEAVED=interleaved, TRANSPOSED=transposed, IN_PLACE=in_place,
        BLOCK_T=block_t, BLOCK_H=block_h, BLOCK=max(triton.next_power_of_2(width), 2),
        num_warps=warps,
    )  # fmt: skip


def _one(launch, *call, in_place=False):
    *how, t, freqs, starts, ends = call
    return _turned(launch, how, [t], freqs, starts, ends, in_place)


@Recorded
def _map_qk(launch, *call):
    """Return q and k turned."""
    *how, q, k, freqs, starts, ends = call
    of_q, of_k = ((*t.shape[:-2], t.shape[-1:], t.dtype) for t in (q, k))
    if of_q != of_k:
        q, k = ((*t.shape, t.dtype) for t in (q, k))
        raise ValueError(f"q and k may differ in their numbers of heads alone, not {q} and {k}")
    return _turned(launch, how, [q, k], freqs, starts, ends)


_map, _map_in_place = Recorded(_one), Recorded(functools.partial(_one, in_place=True))
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
