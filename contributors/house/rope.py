"""Blocks of one token's heads, in memory's order; cos and sin once a block.

All formats and options are one kernel, and backward is the same kernel with other signs.
"""

import functools

import torch
import triton
import triton.language as tl
from launch import Plan
from operators import linear, traced
from pairs import partner_of, partners


@triton.jit
def _find_sequence(cu_seqlens, token, sequences, cp_size, BLOCK: tl.constexpr):
    """Return the last sequence that begins at or before `token`; it is never an empty one."""
    begun = 0
    for first in range(0, sequences, BLOCK):
        sequence = first + tl.arange(0, BLOCK)
        start = tl.load(cu_seqlens + sequence, mask=sequence < sequences, other=2**31 - 1)
        begun += tl.sum((start // cp_size <= token).to(tl.int32))
    return begun - 1


@triton.jit
def _rope_kernel(
    t, freqs, out, start_positions, cu_seqlens,
    columns, heads, length, sequences, t_row, t_column, t_head, freqs_row, cp_size, cp_rank,
    WIDTH: tl.constexpr, ROTARY: tl.constexpr, SEQ_FIRST: tl.constexpr,
    INTERLEAVED: tl.constexpr, TRANSPOSED: tl.constexpr,
    BLOCKS: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK: tl.constexpr,
    FIRST: tl.constexpr, IN_PLACE: tl.constexpr,
):  # fmt: skip
    """Turn BLOCK_H heads of one token: y1 = x1 cos1 - x2 sin1, y2 = x2 cos2 + x1 sin2.

    In one line for both members of a pair, where z is x's partner: y = x cos + z (-sin or sin).
    The tokens stand in a table [s, b] (sbhd), [b, s] (bshd) or [tokens, 1] (thd). The BLOCKS
    programs of a token are neighbours, so that memory is read and written from front to back;
    FIRST is the one of the first head, and IN_PLACE says that out is t (both for `rotary.py`).

    Bytes: 2 * t.numel() * itemsize, since t is read once and out is written once, and each program
    reads ROTARY angles in float32.
    """
    token = tl.program_id(0) // BLOCKS
    row, column = (token // columns).to(tl.int64), (token % columns).to(tl.int64)
    block = tl.program_id(0) % BLOCKS - FIRST
    head = block * BLOCK_H + tl.arange(0, BLOCK_H)[:, None].to(tl.int64)
    t += row * t_row + column * t_column + head * t_head
    if IN_PLACE:
        out = t
    else:
        out += token.to(tl.int64) * heads * WIDTH + head * WIDTH

    # Load t first: the load is under way while the position and the angles are computed.
    feature = tl.arange(0, BLOCK)
    inside = (head < heads) & (feature < WIDTH)[None, :]
    x = tl.load(t + feature[None, :], mask=inside)
    z = partners(x, t, head < heads, ROTARY, INTERLEAVED)

    if cu_seqlens is not None:
        sequence = _find_sequence(cu_seqlens, token, sequences, cp_size, BLOCK)
        start = tl.load(cu_seqlens + sequence) // cp_size
        length = tl.load(cu_seqlens + sequence + 1) // cp_size - start
        index = token - start
    elif SEQ_FIRST:
        sequence, index = column, row
    else:
        sequence, index = row, column
    # A sequence has 2 * cp_size chunks; this rank has chunk cp_rank and, behind it, its mirror,
    # chunk 2 * cp_size - 1 - cp_rank. With cp_size 1 the two are the whole sequence.
    chunk = length // 2
    position = index + chunk * tl.where(index < chunk, cp_rank, 2 * (cp_size - 1) - cp_rank)
    if start_positions is not None:
        position += tl.load(start_positions + sequence)

    # One thread computes a feature's cos and sin for all heads.
    freqs += position.to(tl.int64) * freqs_row
    partner, first = partner_of(feature, ROTARY, INTERLEAVED)
    turns = feature < ROTARY
    angle = tl.load(freqs + feature, mask=turns, other=0).to(tl.float32)
    cos = tl.cos(angle)
    if TRANSPOSED:  # backward: the sine of the partner, with the other sign
        angle = -tl.load(freqs + partner, mask=turns, other=0).to(tl.float32)
    sin = tl.where(first, -tl.sin(angle), tl.sin(angle))
    y = x.to(tl.float32) * cos[None, :] + z.to(tl.float32) * sin[None, :]
    y = tl.where(turns[None, :], y.to(x.dtype), x)
    if IN_PLACE:  # a feature is stored after other threads have read it as a partner
        tl.debug_barrier()
        inside &= turns[None, :]
    tl.store(out + feature[None, :], y, mask=inside)


def _blocks(heads: int, width: int, itemsize: int) -> tuple[int, ...]:
    """Return the number of head blocks, BLOCK_H, BLOCK and num_warps.

    A program has 4 KiB of t: more of them wait for memory at once than with 8 KiB, and fewer
    compute the same angles than with 2 KiB. A thread has at least one angle.
    """
    block = max(triton.next_power_of_2(width), 2)
    block_h = min(triton.next_power_of_2(heads), max(4096 // (block * itemsize), 1))
    return triton.cdiv(heads, block_h), block_h, block, min(max(block // 32, 1), 4)


def _arguments(
    shape, strides, dtype, freqs_shape, freqs_row, sequences, how, transposed, in_place
):  # fmt: skip
    """Return the grid, the kernel's arguments behind its tensors, and the number of warps."""
    seq_first, interleaved, cp_size, cp_rank = how
    if sequences is None:
        (rows, columns, heads, width), (t_row, t_column, t_head, _) = shape, strides
        length = rows if seq_first else columns
    else:
        (rows, heads, width), (t_row, t_head, _) = shape, strides
        columns, t_column, length = 1, 0, 0
    # int(): torch.compile may not know the sizes, and the kernel takes these as constants
    heads, width, rotary = int(heads), int(width), int(freqs_shape[-1])
    blocks, block_h, block, warps = _blocks(heads, width, dtype.itemsize)
    numbers = (columns, heads, length, sequences or 0, t_row, t_column, t_head, freqs_row)
    constants = (width, rotary, seq_first, interleaved, transposed, blocks, block_h, block)
    rest = (*numbers, cp_size, cp_rank, *constants, 0, in_place)
    return (rows * columns * blocks,), rest, warps


@functools.lru_cache(maxsize=1024)
def _plan(dtypes, shape, *rest):
    """Return the plan of a launch, None for no tokens; to look it up takes a microsecond."""
    if 0 in shape:
        return None
    grid, rest, warps = _arguments(shape, *rest)
    return Plan(_rope_kernel, grid, rest, num_warps=warps)


def _launch(t, freqs, starts, ends, how, transposed, in_place=False, kernel=None):
    """Return t turned, by a plan, or, where there is a kernel, by an ordinary launch of that.

    `how` is seq_first, interleaved, cp_size, cp_rank. In place, t has contiguous features.
    """
    if in_place:
        out = t
    elif t.is_contiguous():  # a memory format would take half a microsecond to read
        out = torch.empty_like(t)
    else:
        out = torch.empty_like(t, memory_format=torch.contiguous_format)
    strides, freqs_strides = t.stride(), freqs.stride()
    if strides[-1] != 1:
        t = t.contiguous()
        strides = t.stride()
    if freqs_strides[-1] != 1:
        freqs = freqs.contiguous()
        freqs_strides = freqs.stride()
    dtypes, sequences = freqs.dtype, None
    if starts is not None:
        dtypes = dtypes, starts.dtype
    if ends is not None:
        dtypes, sequences = (dtypes, ends.dtype), ends.numel() - 1
    row = freqs_strides[0]
    key = t.shape, strides, t.dtype, freqs.shape, row, sequences, how, transposed, in_place
    if kernel is None:
        plan = _plan(dtypes, *key)
        if plan is not None:
            plan(t, freqs, out, starts, ends)
    elif t.numel():
        grid, rest, warps = _arguments(*key)
        kernel[grid](t, freqs, out, starts, ends, *rest, num_warps=warps)
    return out


def _trace(kernel, t, freqs, starts, ends, seq_first, interleaved, cp_size, cp_rank, transposed):
    how = seq_first, interleaved, cp_size, cp_rank
    return _launch(t, freqs, starts, ends, how, transposed, kernel=kernel)


_operator = linear(
    "rope",
    "(Tensor t, Tensor freqs, Tensor? starts, Tensor? ends, bool seq_first, bool interleaved,"
    " int cp_size, int cp_rank, bool transposed) -> Tensor",
    tensors=4,
    launch=_trace,
    kernel=_rope_kernel,
    instead="t has a dimension for batches, and heads may hold another",
)


class _Rope(torch.autograd.Function):
    @staticmethod
    def forward(ctx, t, call):
        ctx.call, ctx.version = call, _version(call)
        return _launch(t, *call)

    @staticmethod
    def backward(ctx, grad):
        return _turned(grad, _transposed(ctx)), None


# Function.apply less its preparation for torch.func, which never comes here
_apply = super(torch.autograd.Function, _Rope).apply


def _version(call):
    """Return a number that grows as freqs or the positions are modified.

    save_for_backward keeps such a number too, but takes 3 us of a small call's 40.
    """
    freqs, starts, ends, _, _ = call
    version = freqs._version
    if starts is not None:
        version += starts._version
    if ends is not None:
        version += ends._version
    return version


def _transposed(ctx):
    """Return the call of backward."""
    if _version(ctx.call) != ctx.version:
        raise RuntimeError("freqs, or a tensor of positions, was modified before backward")
    freqs, starts, ends, how, transposed = ctx.call
    return freqs, starts, ends, how, not transposed


def _turned(t, call):
    """Return t turned, with an autograd node only where a gradient is due."""
    if t.requires_grad and torch.is_grad_enabled():
        return _apply(t, call)
    return _launch(t, *call)


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
    """
    call = _call(tensor_format, interleaved, start_positions, cu_seqlens, cp_size, cp_rank)
    if traced():
        starts, ends, how = call
        return _operator(t, freqs, starts, ends, *how, False)
    return _turned(t, (freqs, *call, False))


def _call(
    tensor_format="sbhd",
    interleaved=False,
    start_positions=None,
    cu_seqlens=None,
    cp_size=1,
    cp_rank=0,
):
    """Return the positions, the ends of sequences and `how`, as a launch takes them."""
    if start_positions is not None:
        if cp_size > 1:
            raise NotImplementedError("start_positions with context parallelism")
        start_positions = start_positions.contiguous()
    cu_seqlens = cu_seqlens.contiguous() if tensor_format == "thd" else None
    how = tensor_format != "bshd", bool(interleaved), cp_size, cp_rank
    return start_positions, cu_seqlens, how
