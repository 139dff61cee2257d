"""The sizes, arguments and plans of the rope kernel's launches, which are kept by shape."""

import functools
from typing import NamedTuple

import torch
import triton
from torch import empty_like

from .launch import Plan


class Launches:
    """Launches of one rope kernel: `Launches(kernel)(t, freqs, starts, ends, how, transposed)`."""

    def __init__(self, kernel):
        """Plan nothing yet."""
        self._kernel = kernel
        self.plan = functools.lru_cache(maxsize=1024)(self._plan)

    def __call__(self, t, freqs, starts, ends, how, transposed, in_place=False):
        """Return t turned, by a plan. In place, t has contiguous features.

        `how` is tensor_format, interleaved, cp_size, cp_rank.
        """
        # None: of contiguous tensors they follow from the shapes, and most calls have no positions
        strides = freqs_row = positions = None
        if t.is_contiguous():
            out = t if in_place else empty_like(t)
        else:
            out = t if in_place else empty_like(t, memory_format=torch.contiguous_format)
            t = dense(t)
            strides = t.stride()
        if not freqs.is_contiguous():
            freqs = dense(freqs)
            freqs_row = freqs.stride(0)
        if starts is not None or ends is not None:
            positions = described(starts, ends)
        plan = self.plan(
            t.shape, strides, t.dtype, freqs.shape, freqs_row, freqs.dtype,
            positions, how, transposed, in_place,
        )  # fmt: skip
        plan(t, freqs, out, starts, ends)
        return out

    def ordinary(self, kernel, t, freqs, starts, ends, how, transposed):
        """Return t turned, by an ordinary launch of the kernel, whose sizes torch may not know."""
        check(t, freqs, *described(starts, ends), how)
        t, freqs = dense(t), dense(freqs)
        out = torch.empty_like(t, memory_format=torch.contiguous_format)
        if t.numel():
            of_tensors = t.shape, t.stride(), t.dtype, freqs.shape, freqs.stride(0)
            sequences = None if ends is None else ends.numel() - 1
            grid, rest, warps = arguments(*of_tensors, sequences, how, transposed, in_place=False)
            kernel[grid](t, freqs, out, starts, ends, *rest, num_warps=warps)
        return out

    def _plan(
        self, shape, strides, dtype, freqs_shape, freqs_row, freqs_dtype, positions, how,
        transposed, in_place,
    ):  # fmt: skip
        """Return the plan of a launch; to look it up takes a microsecond.

        Raises:
            ValueError: There is no such call of rope.
        """
        starts, ends = positions or (None, None)
        check(Like(shape, dtype), Like(freqs_shape, freqs_dtype), starts, ends, how)
        if 0 in shape:
            return _launch_nothing
        if strides is None:
            strides = torch.empty(shape, device="meta").stride()
        if freqs_row is None:
            freqs_row = freqs_shape[-1]
        sequences = ends and ends.shape[0] - 1
        of_tensors, of_call = (shape, strides, dtype, freqs_shape), (how, transposed, in_place)
        sizes = arguments(*of_tensors, freqs_row, sequences, *of_call, no_starts=starts is None)
        grid, rest, warps = sizes
        return Plan(self._kernel, grid, rest, num_warps=warps)


def _launch_nothing(*tensors):
    """Stand for the plan of no tokens."""


def dense(x):
    """Return x, copied where its features are not contiguous."""
    return x if x.stride(-1) == 1 else x.contiguous()


class Like(NamedTuple):
    """What a plan knows of a tensor."""

    shape: tuple[int, ...]
    dtype: torch.dtype


def described(starts, ends):
    """Return what a plan knows of the positions."""
    return (
        None if starts is None else Like(starts.shape, starts.dtype),
        None if ends is None else Like(ends.shape, ends.dtype),
    )


LAYOUTS = {"sbhd": "[s, b, h, d]", "bshd": "[b, s, h, d]", "thd": "[tokens, h, d]"}


def check(t, freqs, starts, ends, how):
    """Raise ValueError if there is no such call of rope; the kernel would read past a tensor.

    Values on the GPU are not looked at: those of start_positions and cu_seqlens are the caller's.
    """
    for fault in _faults(t, freqs, starts, ends, *how):
        raise ValueError(f"rope: {fault}")


def _faults(t, freqs, starts, ends, tensor_format, interleaved, cp_size, cp_rank):
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
        if each and (each.dtype not in (torch.int32, torch.int64) or len(each.shape) != 1):
            yield f"{name} is a list of int32, not {list(each.shape)} of {each.dtype}"
    if not 0 <= cp_rank < cp_size:
        yield f"cp_rank {cp_rank} is not one of {cp_size} ranks"
    if ends:
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
    if starts and starts.shape[0] != sequences:
        yield f"start_positions is [b], not {list(starts.shape)}, where b is {sequences}"


def arguments(
    shape, strides, dtype, freqs_shape, freqs_row, sequences, how, transposed, in_place,
    no_starts=False, alone=True,
):  # fmt: skip
    """Return the grid, the kernel's arguments behind its tensors, and the number of warps.

    no_starts: no sequence has a position of its own. Then the columns of [s, b] share one, and
    are taken as further heads where they lie in memory as heads do.
    alone: no other tensor is turned by the same launch.
    """
    tensor_format, interleaved, cp_size, cp_rank = how
    seq_first = tensor_format != "bshd"
    if sequences is None:
        (rows, columns, heads, width), (t_row, t_column, t_head, _) = shape, strides
        length = rows if seq_first else columns
    else:
        (rows, heads, width), (t_row, t_head, _) = shape, strides
        columns, t_column, length = 1, 0, 0
    # int(): torch.compile may not know the sizes, and the kernel takes these as constants
    heads, width, rotary = int(heads), int(width), int(freqs_shape[-1])
    if no_starts and seq_first and sequences is None and t_column == heads * t_head:
        heads, columns = heads * columns, 1
    blocks, *sizes, warps = _blocks(heads, width, dtype.itemsize, alone)
    tokens = rows * columns
    numbers = (tokens, columns, heads, blocks, length, sequences or 0)
    strides = (t_row, t_column, t_head, freqs_row)
    constants = (width, rotary, seq_first, interleaved, transposed, *sizes)
    many = no_starts and sequences is not None and sequences > sizes[2]
    rest = (*numbers, *strides, cp_size, cp_rank, *constants, 0, in_place, many)
    return (triton.cdiv(tokens, sizes[0]) * blocks,), rest, warps


def _blocks(heads: int, width: int, itemsize: int, alone: bool) -> tuple[int, ...]:
    """Return the number of head blocks, BLOCK_T, BLOCK_H, the tiles, TURNS and num_warps.

    A program has 4 KiB of t, or a little more where a width is no power of two: more of them wait
    for memory at once than with 8 KiB, and fewer compute the same angles than with 2 KiB. Tokens of
    less than 2 KiB share one. A thread has at least one angle, and two in a program with lanes that
    have no feature or no head.
    """
    block = max(triton.next_power_of_2(width), 2)
    rows = triton.next_power_of_2(max(4096 // (width * itemsize), 1))
    block_h = min(triton.next_power_of_2(heads), rows)
    block_t = rows // block_h if 2 * block_h < rows else 1
    if block_t > 1 and alone:
        tiles, turns = _tiles(width), 2 if block_h == 2 else 1
    else:
        tiles, turns = (block, 0, width), 1
    angles = block_t * block
    if block_t == 1 and (width < block or heads < block_h):
        angles //= 2
    warps = min(max(angles // 32, 1), 4)
    return triton.cdiv(heads, block_h), block_t, block_h // turns, *tiles, turns, warps


def _tiles(width: int) -> tuple[int, int, int]:
    """Return BLOCK, BLOCK_2 and SPLIT for few heads, where the angles are most of the work.

    Two tiles where they have fewer lanes without a feature than one: 128 and 64 for a width of 192.
    """
    block = max(triton.next_power_of_2(width), 2)
    split = block // 2
    rest = triton.next_power_of_2(width - split)
    return (split, rest, split) if 16 <= rest < split else (block, 0, width)


def call_of(
    freqs, tensor_format="sbhd", interleaved=False, start_positions=None, cu_seqlens=None,
    cp_size=1, cp_rank=0,
):  # fmt: skip
    """Return freqs, the positions, the ends of sequences and `how`, as a launch takes them."""
    if freqs.requires_grad and torch.is_grad_enabled():
        raise ValueError("rope: freqs gets no gradient; pass freqs.detach()")
    if start_positions is not None:
        if cp_size > 1:
            raise NotImplementedError("start_positions with context parallelism")
        start_positions = start_positions.contiguous()
    if cu_seqlens is not None:
        cu_seqlens = cu_seqlens.contiguous()
    how = tensor_format, bool(interleaved), cp_size, cp_rank
    return freqs, start_positions, cu_seqlens, how


def version(call):
    """Return a number that grows as freqs or the positions are modified.

    save_for_backward keeps such a number too, but takes 3 us of a small call's 40.
    """
    freqs, starts, ends, _, _ = call
    if starts is None and ends is None:
        return freqs._version
    return sum(each._version for each in (freqs, starts, ends) if each is not None)


def transposed(ctx):
    """Return the call of backward."""
    if version(ctx.call) != ctx.version:
        raise RuntimeError("freqs, or a tensor of positions, was modified before backward")
    freqs, starts, ends, how, transposed = ctx.call
    return freqs, starts, ends, how, not transposed
