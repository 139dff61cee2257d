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

from .launch import Recorded, ceil_div, power_of_2
from .operators import differentiable, traceable, traced
from .rope_kernel import LOOK, rope_kernel

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


def _turned(launch, *arguments, in_place=False):
    """Return one tensor turned, or both of two by one launch; in place, nothing."""
    how, tensors, (freqs, starts, ends) = arguments[:5], arguments[5:-3], arguments[-3:]
    for each in tensors:
        check(each, freqs, starts, ends, *how)
    first, last = ((*t.shape[:-2], t.shape[-1], t.dtype) for t in (tensors[0], tensors[-1]))
    if first != last:
        q, k = ((*t.shape, t.dtype) for t in tensors)
        raise ValueError(f"q and k may differ in their numbers of heads alone, not {q} and {k}")
    outs = tensors if in_place else [t.new_empty(t.shape) for t in tensors]
    # packed tokens are one column
    tables = [t.unsqueeze(1) if ends is not None else t for t in tensors]
    pairs = [pair for pair in zip(tables, outs, strict=True) if 0 not in pair[0].shape]
    if pairs:
        launch_turn(launch, how, pairs, freqs, starts, ends, in_place)
    return () if in_place else outs


def launch_turn(launch, how, pairs, freqs=None, starts=None, ends=None, in_place=False):
    """Launch the kernel for one or two pairs of a table [rows, columns, heads, d] and a result."""
    tensor_format, interleaved, cp_size, cp_rank, transposed = how
    (t, out), (k, k_out) = (*pairs, (None, None))[:2]
    (rows, columns, heads, width), (*_, column, head, _) = t.shape, t.stride()
    k_heads, k_strides = (0, (0,) * 4) if k is None else (k.shape[2], k.stride())
    freqs_row, *_, freqs_feature = (0, 0) if freqs is None else freqs.stride()
    if k is starts is None and tensor_format == "sbhd" and column == heads * head:
        heads, columns = heads * columns, 1  # a row's tokens share angles: as heads of one
    # int(): torch.compile may not know the sizes, and the kernel takes these as constants
    heads, width = int(heads), int(width)
    rotary = width if freqs is None else int(freqs.shape[-1])
    sizes = _sizes(heads, width, t.dtype.itemsize)
    block_h = sizes["TURNS"] * sizes["BLOCK_H"]
    blocks = ceil_div(heads, block_h) + ceil_div(k_heads, block_h)
    step, sequences = 1, 0 if ends is None else ends.shape[0] - 1
    if sequences > LOOK.value:  # few steps, since a kernel is compiled for each
        entries = power_of_2(ceil_div(sequences, LOOK.value))
        step = 16 if entries <= 16 else max(entries, 128)
    launch(
        rope_kernel, (ceil_div(rows * columns, sizes["BLOCK_T"]) * blocks,),
        t, k, freqs, out, k_out, starts, ends, rows, columns, heads, k_heads,
        sequences, *t.stride(), *k_strides, freqs_row, freqs_feature, cp_rank,
        CP_SIZE=cp_size, WIDTH=width, ROTARY=rotary, SEQ_FIRST=tensor_format != "bshd",
        INTERLEAVED=interleaved, TRANSPOSED=transposed, IN_PLACE=in_place, STEP=step, **sizes,
    )  # fmt: skip


def _sizes(heads, width, itemsize):
    """Return a program's tokens, heads and features, and its warps.

    A program has about 4 KiB: more of them wait for memory at once than with 8 KiB, and fewer
    compute the same angles than with 2 KiB. Tokens of less than 2 KiB share one. A thread has at
    least one angle, and two in a program with lanes that have no feature or no head.
    """
    block, last = max(power_of_2(width), 2), 0
    lines = power_of_2(max(4096 // (width * itemsize), 1))
    block_h, turns = min(power_of_2(heads), lines), 1
    block_t = lines // block_h if 2 * block_h < lines else 1
    angles = block_t * block
    if block_t == 1 and (width < block or heads < block_h):
        angles //= 2
    if block_t > 1:  # few heads: the angles are most of the work
        if heads <= 4:  # a thread takes all, for which it computes the angles
            block_h, turns = 1, heads
        rest = power_of_2(width - block // 2)
        if 16 <= rest < block // 2:  # 128 and 64 lanes for a width of 192
            block, last = block // 2, rest
    sizes = {"BLOCK_T": block_t, "BLOCK_H": block_h, "TURNS": turns, "BLOCK": block, "LAST": last}
    return {**sizes, "num_warps": min(max(angles // 32, 1), 4)}


_map = Recorded(_turned)
_turn = differentiable(_map)
_turn_in_place = differentiable(Recorded(functools.partial(_turned, in_place=True)), _turn)
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
    return _turn(_call_of(freqs, **options), q, k)


def rope_(t: torch.Tensor, freqs: torch.Tensor, **options: Any) -> torch.Tensor:
    """Turn t in place as `t.copy_(rope(t, freqs, **options))` does; return t.

    Raises:
        RuntimeError: t is a leaf that requires a gradient, its elements share memory, or it is of
            inference mode, which is over.
    """
    if traced() or 0 in t.stride():
        return t.copy_(rope(t, freqs, **options))
    if t.is_inference() and not torch.is_inference_mode_enabled():
        raise RuntimeError("a tensor of inference mode cannot be turned in place outside of it")
    call = _call_of(freqs, **options)
    if not (t.requires_grad and torch.is_grad_enabled()):
        torch.autograd.graph.increment_version(t)
    elif (owner := t._base if t._is_view() else t).is_leaf and owner.requires_grad:
        raise RuntimeError("a leaf that requires a gradient cannot be turned in place")
    return _turn_in_place(call, t)[0]


def _check_half(x, *how):
    if not len(x.shape) or x.shape[-1] % 2:
        raise ValueError(f"rotate_half: x {list(x.shape)} is not [..., d], d even")


@Recorded
def _map_half(launch, interleaved, transposed, x):
    """Return x turned; it has four dimensions at most."""
    _check_half(x)
    y = x.new_empty(x.shape)
    if 0 not in x.shape:
        table = x
        while len(table.shape) < 4:  # [rows, 1, 1, d], [rows, 1, heads, d]
            table = table.unsqueeze(1 if len(table.shape) > 1 else 0)
        launch_turn(launch, ("sbhd", interleaved, 1, 0, transposed), [(table, y)])
    return (y,)


_turn_half = differentiable(_map_half)
_half_operator = traceable(
    "rotate_half", "(Tensor x, bool interleaved, bool transposed) -> Tensor",
    _map_half, _check_half, rope_kernel, instead="x may have any number of dimensions",
)  # fmt: skip


def rotate_half(x: torch.Tensor, *, interleaved: bool = False) -> torch.Tensor:
    """Return [-x2, x1] for the halves [x1, x2] of x [..., d], d even; `interleaved`, for the pairs.

    With `interleaved`, (x[2i], x[2i + 1]) becomes (-x[2i + 1], x[2i]). Returns x's shape and dtype.

    Raises:
        ValueError: d is odd, or x has no dimension.
    """
    if len(x.shape) > 4:
        return rotate_half(x.flatten(0, -4), interleaved=interleaved).view(x.shape)
    how = interleaved, False
    return _half_operator(x, *how) if traced() else _turn_half((how,), x)[0]
