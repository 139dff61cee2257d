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
from triton import next_power_of_2

from .forms import HOPPER, overlapping
from .launch import Recorded, ceil_div
from .operators import Operator, lacks_kernels, traced
from .rope_kernel import LOOK, Form, rope_kernel

GRID = 65535
"""The most programs of a launch on its second axis."""
SMALL = 2 << 20
"""Bytes of t up to which programs of few heads are smaller, so that each processor has some."""
INTEGERS = torch.int32, torch.int64
LAYOUTS = {"sbhd": "[s, b, h, d]", "bshd": "[b, s, h, d]", "thd": "[tokens, h, d]"}


def check(how, t, k, freqs, starts, ends):
    """Return what turns, one tensor or two; raise ValueError if there is no such call of rope.

    The kernel would read past a tensor. Values on the GPU are not looked at: those of
    start_positions and cu_seqlens are the caller's.
    """
    turning = [t] if k is None else [t, k]
    devices = {str(each.device) for each in (t, k, freqs, starts, ends) if each is not None}
    if len(devices) > 1:
        raise ValueError(f"rope: the tensors are on {' and '.join(sorted(devices))}")
    for each in turning:
        for fault in _faults(each, freqs, starts, ends, *how):
            raise ValueError(f"{'rotate_half' if freqs is None else 'rope'}: {fault}")
    q, k = ((*each.shape, each.dtype) for each in (turning[0], turning[-1]))
    if (*q[:-3], *q[-2:]) != (*k[:-3], *k[-2:]):
        raise ValueError(f"rope: q and k may differ in their numbers of heads alone, not {q}, {k}")
    return turning


def _faults(t, freqs, starts, ends, tensor_format, interleaved, cp_size, cp_rank, transposed):
    """Yield what is wrong with a call; where something is, what follows may raise."""
    if freqs is None:
        if not len(t.shape) or t.shape[-1] % 2:
            yield f"x {list(t.shape)} is not [..., d], d even"
        return
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
        if each is not None and (each.dtype not in INTEGERS or len(each.shape) != 1):
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


def _table(t, tensor_format):
    """Return t as [positions, batch, heads, d]; packed tokens are the positions of one sequence."""
    while len(t.shape) < 4:  # thd, or what `rotate_half` gets
        t = t.unsqueeze(1 if len(t.shape) > 1 else 0)
    return t.transpose(0, 1) if tensor_format == "bshd" else t


def _turned(launch, how, *tensors, in_place=False):
    """Return one tensor turned, or both of two by one launch; in place, nothing."""
    tensor_format, interleaved, cp_size, cp_rank, transposed = how
    turning, (freqs, starts, ends) = check(how, *tensors), tensors[2:]
    if lacks_kernels(turning[0]):
        return _in_plain_torch(how, turning, freqs, starts, ends)
    outs = [] if in_place else [t.new_empty(t.shape) for t in turning]
    pairs = zip(turning, outs or turning, strict=True)
    pairs = [[_table(t, tensor_format) for t in pair] for pair in pairs if pair[0].numel()]
    if not pairs:
        return outs
    # the tensor of more heads first: each program has a share of the other one's
    pairs.sort(key=lambda pair: -pair[0].shape[2])
    (t, out), (k, k_out) = (*pairs, (None, None))[:2]
    positions, batch, heads, width = t.shape
    (of_batch, of_head), batch_first = t.stride()[1:3], tensor_format == "bshd"
    k_heads, k_strides, k_out_strides = 0, (0,) * 4, (0, 0)
    if k is not None:
        k_heads, k_strides, k_out_strides = k.shape[2], k.stride(), k_out.stride()[:2]
    freqs_strides = (0, 0) if freqs is None else freqs.stride()[::3]
    if k is starts is None and of_batch == heads * of_head and not batch_first:
        heads, batch = heads * batch, 1  # a position's tokens share angles: as heads of one
    rotary = width if freqs is None else freqs.shape[-1]
    features = width, rotary, interleaved, transposed, in_place
    small = t.numel() * t.dtype.itemsize <= SMALL
    alike = batch if starts is None else 1  # sequences that share a position's angles
    form, warps = _form(features, alike, heads, k_heads, t.dtype.itemsize, small)
    blocks = ceil_div(heads, form.TURNS * form.BLOCK_H)
    groups, outer = ceil_div(batch, form.BLOCK_B), 1
    if batch_first and groups <= GRID:  # in memory's order, and without a division
        groups, outer = 1, groups
    step, sequences = 1, 0 if ends is None else ends.shape[0] - 1
    if sequences > LOOK.value:  # few steps, since a kernel is compiled for each
        entries = next_power_of_2(ceil_div(sequences, LOOK.value))
        step = 16 if entries <= 16 else max(entries, 128)
    launch(
        rope_kernel, (ceil_div(positions, form.BLOCK_P) * groups * blocks, outer),
        t, k, freqs, out, k_out, starts, ends, positions, batch, heads, k_heads, blocks, groups,
        sequences, t.stride(), k_strides, out.stride()[:2], k_out_strides, freqs_strides, cp_rank,
        FORM=form, CP_SIZE=cp_size, STEP=step, num_warps=warps, **overlapping(HOPPER),
    )  # fmt: skip
    return outs


def _in_plain_torch(how, tensors, freqs, starts, ends):
    """Return each of the tensors turned."""
    tensor_format, interleaved, cp_size, cp_rank, transposed = how

    def partners(x):
        if interleaved:
            return torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2)
        first, second = x.chunk(2, -1)
        return torch.cat((-second, first), -1)

    def turned(t):
        if freqs is None:
            return -partners(t) if transposed else partners(t)
        table = _table(t, tensor_format)
        token, sequence = torch.arange(len(table))[:, None], torch.arange(table.shape[1])
        position, length = token, len(token)
        if ends is not None:
            cuts = ends // cp_size
            sequence = torch.searchsorted(cuts, token.to(cuts.dtype), right=True) - 1
            position, length = token - cuts[sequence], cuts.diff()[sequence]
        if cp_size > 1:  # a sequence's chunk cp_rank and its mirror from the end
            chunk = length // 2
            mirror = 2 * (cp_size - 1) - cp_rank
            position = position + chunk * torch.where(position < chunk, cp_rank, mirror)
        if starts is not None:
            position = position + starts[sequence]
        angles = freqs[position, 0].float()  # [positions, 1 or batch, 1, d2]
        x, rest = table.tensor_split([angles.shape[-1]], -1)
        x, sines = x.float(), angles.sin()
        crossed = -partners(x * sines) if transposed else partners(x) * sines
        turned = x * angles.cos() + crossed
        turned = torch.cat((turned.to(t.dtype), rest), -1)
        return (turned.transpose(0, 1) if tensor_format == "bshd" else turned).reshape(t.shape)

    # in the strides that the compiler is told
    return tuple(turned(t).contiguous() for t in tensors)


def _form(features, batch, heads, k_heads, itemsize, small):
    """Return a launch's form, of which `features` are the first five constants, and its warps.

    A program has about 4 KiB: more of them wait for memory at once than with 8 KiB, and fewer
    compute the same angles than with 2 KiB. Where the heads of a position have less, it takes them
    of several sequences, and then of several positions if it has less than 2 KiB. It has a share
    of k besides. A thread has at least one angle and 32 bytes (64 beside k), and two angles where
    lanes have no feature or no head.
    """
    (width, rotary, *_), last = features, 0
    block = max(next_power_of_2(width), 2)
    lines = next_power_of_2(max(4096 // (width * itemsize), 1))
    block_h, turns = min(next_power_of_2(heads), lines), 1
    block_b = min(next_power_of_2(batch), lines // block_h) if heads > 4 else 1
    lines //= block_b
    block_p = lines // block_h if 2 * block_h < lines else 1
    threads = block_p * block
    if block_p == 1:
        threads = next_power_of_2(rotary)
        if width < block or heads < block_h:
            threads = min(threads, block // 2)
        threads = min(threads, block_b * block_h * width * itemsize // (64 if k_heads else 32))
    else:  # few heads: the angles are most of the work
        if small:
            block_p = max(block_p // 4, 1)
            threads = block_p * block // 4
        if heads <= 4:  # a thread takes all, for which it computes the angles
            block_h, turns = 1, heads
        rest = next_power_of_2(width - block // 2)
        if 16 <= rest < block // 2:  # 128 and 64 lanes for a width of 192
            block, last = block // 2, rest
    share = max(ceil_div(k_heads, ceil_div(heads, block_h * turns)), 1)
    block_k, k_turns = (1, share) if turns > 1 else (next_power_of_2(share), 1)
    form = Form(*features, block_p, block_b, block_h, turns, block_k, k_turns, block, last)
    return form, min(max(threads // 32, 1), 4)


class Turn(Operator):
    """The turn of one tensor or two, which is linear in both."""

    def kept(self, tensors, outputs):
        """Return freqs and the tensors of positions."""
        return tensors[2:]

    def tangents(self, how, tangents, kept):
        """Return the tangents turned, of which one may be None."""
        t, k = (*tangents, None)[:2]
        if t is None:
            return None, self(how, k, None, *kept)[0]
        turned = self(how, t, k, *kept)
        return (turned[0], None) if k is None else turned

    def gradients(self, how, needed, grads, kept):
        """Return the gradients turned back."""
        return self.tangents((*how[:-1], not how[-1]), grads, kept)


_turn = Turn(
    "rope",
    "(Tensor t, Tensor? k, Tensor? freqs, Tensor? starts, Tensor? ends, str tensor_format,"
    " bool interleaved, int cp_size, int cp_rank, bool transposed) -> (Tensor, Tensor)",
    Recorded(_turned),
    lambda how, *tensors: [t.new_empty(t.shape) for t in check(how, *tensors)],
)
_launch_in_place = Recorded(functools.partial(_turned, in_place=True))


def _in_place(how, t, *others):
    """Turn t itself."""
    _launch_in_place(how, t, *others)
    torch.autograd.graph.increment_version(t)
    return (t,)


def _call(
    turn, t, k, freqs, tensor_format="sbhd", interleaved=False, start_positions=None,
    cu_seqlens=None, cp_size=1, cp_rank=0,
):  # fmt: skip
    """Return `turn`'s results for one tensor or two, and the options of rope."""
    if freqs.requires_grad and torch.is_grad_enabled():
        raise ValueError("rope: freqs gets no gradient; pass freqs.detach()")
    if start_positions is not None:
        if cp_size > 1:
            raise NotImplementedError("start_positions with context parallelism")
        start_positions = start_positions.contiguous()
    if cu_seqlens is not None:
        cu_seqlens = cu_seqlens.contiguous()
    how = tensor_format, bool(interleaved), cp_size, cp_rank, False
    return turn(how, t, k, freqs, start_positions, cu_seqlens)


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
    return _call(_turn, t, None, freqs, tensor_format, *options)[0]


def rope_qk(
    q: torch.Tensor, k: torch.Tensor, freqs: torch.Tensor, **options: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return `rope(q, freqs, **options)` and `rope(k, freqs, **options)` by one launch.

    q: as t of `rope`, for example [s, b, 32, d]; k: the same but for its heads, [s, b, 8, d].

    Raises:
        ValueError: q and k differ in more than their heads, or `rope` raises it.
    """
    return _call(_turn, q, k, freqs, **options)


def rope_(t: torch.Tensor, freqs: torch.Tensor, **options: Any) -> torch.Tensor:
    """Turn t in place as `t.copy_(rope(t, freqs, **options))` does; return t.

    Raises:
        RuntimeError: t is a leaf that requires a gradient, its elements share memory, or it is of
            inference mode, which is over.
    """
    if traced() or 0 in t.stride() or lacks_kernels(t):
        return t.copy_(rope(t, freqs, **options))
    if t.is_inference() and not torch.is_inference_mode_enabled():
        raise RuntimeError("a tensor of inference mode cannot be turned in place outside of it")
    owner = t._base if t._is_view() else t
    if torch.is_grad_enabled() and owner.is_leaf and owner.requires_grad:
        raise RuntimeError("a leaf that requires a gradient cannot be turned in place")
    return _call(functools.partial(_turn.call, _in_place), t, None, freqs, **options)[0]


def rotate_half(x: torch.Tensor, *, interleaved: bool = False) -> torch.Tensor:
    """Return [-x2, x1] for the halves [x1, x2] of x [..., d], d even; `interleaved`, for the pairs.

    With `interleaved`, (x[2i], x[2i + 1]) becomes (-x[2i + 1], x[2i]). Returns x's shape and dtype.

    Raises:
        ValueError: d is odd, or x has no dimension.
    """
    if len(x.shape) > 4:
        return rotate_half(x.flatten(0, -4), interleaved=interleaved).view(x.shape)
    how = "sbhd", bool(interleaved), 1, 0, False
    return _turn(how, x, None, None, None, None)[0]
