"""The sizes, arguments and plans of the rope kernel's launches, which are kept by shape."""

import functools

import torch
import triton
from launch import Plan
from torch import empty_like


class Launches:
    """Launches of one rope kernel: `Launches(kernel)(t, freqs, starts, ends, how, transposed)`."""

    def __init__(self, kernel):
        """Plan nothing yet."""
        self._kernel = kernel
        self.plan = functools.lru_cache(maxsize=1024)(self._plan)

    def __call__(self, t, freqs, starts, ends, how, transposed, in_place=False):
        """Return t turned, by a plan. In place, t has contiguous features.

        `how` is seq_first, interleaved, cp_size, cp_rank.
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
        t, freqs = dense(t), dense(freqs)
        out = torch.empty_like(t, memory_format=torch.contiguous_format)
        if t.numel():
            of_tensors = t.shape, t.stride(), t.dtype, freqs.shape, freqs.stride(0)
            sequences = None if ends is None else ends.numel() - 1
            grid, rest, warps = arguments(*of_tensors, sequences, how, transposed, in_place=False)
            kernel[grid](t, freqs, out, starts, ends, *rest, num_warps=warps)
        return out

    def _plan(
        self, shape, strides, dtype, freqs_shape, freqs_row, _, positions, how, transposed, in_place
    ):
        """Return the plan of a launch; to look it up takes a microsecond."""
        if 0 in shape:
            return _launch_nothing
        if strides is None:
            strides = torch.empty(shape, device="meta").stride()
        if freqs_row is None:
            freqs_row = freqs_shape[-1]
        sequences, starts, _ = positions or (None, None, None)
        of_tensors, of_call = (shape, strides, dtype, freqs_shape), (how, transposed, in_place)
        sizes = arguments(*of_tensors, freqs_row, sequences, *of_call, no_starts=starts is None)
        grid, rest, warps = sizes
        return Plan(self._kernel, grid, rest, num_warps=warps)


def _launch_nothing(*tensors):
    """Stand for the plan of no tokens."""


def dense(x):
    """Return x, copied where its features are not contiguous."""
    return x if x.stride(-1) == 1 else x.contiguous()


def described(starts, ends):
    """Return the number of sequences, if they are packed, and the dtypes of the positions."""
    sequences = None if ends is None else ends.numel() - 1
    return sequences, *(None if each is None else each.dtype for each in (starts, ends))


def arguments(
    shape, strides, dtype, freqs_shape, freqs_row, sequences, how, transposed, in_place,
    no_starts=False, alone=True,
):  # fmt: skip
    """Return the grid, the kernel's arguments behind its tensors, and the number of warps.

    no_starts: no sequence has a position of its own. Then the columns of [s, b] share one, and
    are taken as further heads where they lie in memory as heads do.
    alone: no other tensor is turned by the same launch.
    """
    seq_first, interleaved, cp_size, cp_rank = how
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
    tensor_format="sbhd", interleaved=False, start_positions=None, cu_seqlens=None,
    cp_size=1, cp_rank=0,
):  # fmt: skip
    """Return the positions, the ends of sequences and `how`, as a launch takes them."""
    if start_positions is not None:
        if cp_size > 1:
            raise NotImplementedError("start_positions with context parallelism")
        start_positions = start_positions.contiguous()
    cu_seqlens = cu_seqlens.contiguous() if tensor_format == "thd" else None
    how = tensor_format != "bshd", bool(interleaved), cp_size, cp_rank
    return start_positions, cu_seqlens, how


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
