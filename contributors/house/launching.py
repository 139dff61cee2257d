"""The sizes, arguments and plans of the rope kernel's launches, which are kept by shape."""

import functools

import torch
import triton
from launch import Plan


class Launches:
    """Launches of one rope kernel: `Launches(kernel)(t, freqs, starts, ends, how, transposed)`."""

    def __init__(self, kernel):
        """Plan nothing yet."""
        self._kernel = kernel
        self.plan = functools.lru_cache(maxsize=1024)(self._plan)

    def __call__(self, t, freqs, starts, ends, how, transposed, in_place=False, kernel=None):
        """Return t turned, by a plan, or, where there is a kernel, by an ordinary launch of that.

        `how` is seq_first, interleaved, cp_size, cp_rank. In place, t has contiguous features.
        """
        strides = freqs_row = None  # of a contiguous tensor they follow from its shape
        if t.is_contiguous():
            out = t if in_place else torch.empty_like(t)
        else:
            out = t if in_place else torch.empty_like(t, memory_format=torch.contiguous_format)
            t = t if t.stride(-1) == 1 else t.contiguous()
            strides = t.stride()
        if not freqs.is_contiguous():
            freqs = freqs if freqs.stride(-1) == 1 else freqs.contiguous()
            freqs_row = freqs.stride(0)
        dtypes, sequences = freqs.dtype, None
        if starts is not None:
            dtypes = dtypes, starts.dtype
        if ends is not None:
            dtypes, sequences = (dtypes, ends.dtype), ends.numel() - 1
        of_tensors = t.shape, strides, t.dtype, freqs.shape, freqs_row
        if kernel is None:
            of_call = sequences, how, transposed, in_place, starts is None
            plan = self.plan(dtypes, *of_tensors, *of_call)
            if plan is not None:
                plan(t, freqs, out, starts, ends)
        elif t.numel():
            of_tensors = t.shape, t.stride(), t.dtype, freqs.shape, freqs.stride(0)
            grid, rest, warps = arguments(*of_tensors, sequences, how, transposed, in_place)
            kernel[grid](t, freqs, out, starts, ends, *rest, num_warps=warps)
        return out

    def _plan(self, dtypes, shape, strides, dtype, freqs_shape, freqs_row, *rest):
        """Return the plan of a launch, None for no tokens; to look it up takes a microsecond."""
        if 0 in shape:
            return None
        if strides is None:
            strides = torch.empty(shape, device="meta").stride()
        if freqs_row is None:
            freqs_row = freqs_shape[-1]
        grid, rest, warps = arguments(shape, strides, dtype, freqs_shape, freqs_row, *rest)
        return Plan(self._kernel, grid, rest, num_warps=warps)


def arguments(
    shape, strides, dtype, freqs_shape, freqs_row, sequences, how, transposed, in_place,
    no_starts=False,
):  # fmt: skip
    """Return the grid, the kernel's arguments behind its tensors, and the number of warps.

    no_starts: no sequence has a position of its own. Then the columns of [s, b] share one, and
    are taken as further heads where they lie in memory as heads do.
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
    blocks, *sizes, warps = _blocks(heads, width, dtype.itemsize)
    tokens = rows * columns
    numbers = (tokens, columns, heads, blocks, length, sequences or 0)
    strides = (t_row, t_column, t_head, freqs_row)
    constants = (width, rotary, seq_first, interleaved, transposed, *sizes)
    many = no_starts and sequences is not None and sequences > sizes[-1]
    rest = (*numbers, *strides, cp_size, cp_rank, *constants, 0, in_place, many)
    return (triton.cdiv(tokens, sizes[0]) * blocks,), rest, warps


def _blocks(heads: int, width: int, itemsize: int) -> tuple[int, ...]:
    """Return the number of head blocks, BLOCK_T, BLOCK_H, BLOCK and num_warps.

    A program has 4 KiB of t, or a little more where a width is no power of two: more of them wait
    for memory at once than with 8 KiB, and fewer compute the same angles than with 2 KiB. Tokens of
    less than 2 KiB share one. A thread has at least one angle.
    """
    block = max(triton.next_power_of_2(width), 2)
    rows = triton.next_power_of_2(max(4096 // (width * itemsize), 1))
    block_h = min(triton.next_power_of_2(heads), rows)
    block_t = rows // block_h if 2 * block_h < rows else 1
    warps = min(max(block_t * block // 32, 1), 4)
    return triton.cdiv(heads, block_h), block_t, block_h, block, warps


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
    number = freqs._version
    if starts is not None:
        number += starts._version
    if ends is not None:
        number += ends._version
    return number


def transposed(ctx):
    """Return the call of backward."""
    if version(ctx.call) != ctx.version:
        raise RuntimeError("freqs, or a tensor of positions, was modified before backward")
    freqs, starts, ends, how, transposed = ctx.call
    return freqs, starts, ends, how, not transposed
