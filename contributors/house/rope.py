"""Blocks of one token's heads, in memory's order; wide loads.

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
    """Return the last sequence that begins at or before each token; it is never an empty one."""
    begun = tl.zeros_like(token)
    for first in range(0, sequences, BLOCK):
        sequence = first + tl.arange(0, BLOCK)
        start = tl.load(cu_seqlens + sequence, mask=sequence < sequences, other=2**31 - 1)
        begun += tl.sum((start[None, :] // cp_size <= token[:, None]).to(tl.int32), axis=1)
    return begun - 1


@triton.jit
def _for_each_head(values, HEADS: tl.constexpr):
    """Return values [tokens, features] as [tokens * HEADS, features]: each row HEADS times."""
    TOKENS: tl.constexpr = values.shape[0]
    FEATURES: tl.constexpr = values.shape[1]
    values = tl.broadcast_to(values[:, None, :], [TOKENS, HEADS, FEATURES])
    return tl.reshape(values, [TOKENS * HEADS, FEATURES])


@triton.jit
def _rope_kernel(
    t, freqs, out, start_positions, cu_seqlens,
    tokens, columns, heads, blocks, length, sequences,
    t_row, t_column, t_head, freqs_row, cp_size, cp_rank,
    WIDTH: tl.constexpr, ROTARY: tl.constexpr, SEQ_FIRST: tl.constexpr,
    INTERLEAVED: tl.constexpr, TRANSPOSED: tl.constexpr,
    BLOCK_T: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK: tl.constexpr,
    FIRST: tl.constexpr, IN_PLACE: tl.constexpr,
):  # fmt: skip
    """Turn BLOCK_H heads of BLOCK_T tokens: y1 = x1 cos1 - x2 sin1, y2 = x2 cos2 + x1 sin2.

    In one line for both members of a pair, where z is x's partner: y = x cos + z (-sin or sin).
    The tokens stand in a table [s, b] (sbhd), [b, s] (bshd) or [tokens, 1] (thd). The blocks
    of a token's heads are neighbours, so that memory is read and written from front to back;
    FIRST is the one of the first head, and IN_PLACE says that out is t (both for `rotary.py`).

    Bytes: 2 * t.numel() * itemsize, since t is read once and out is written once, and each program
    reads BLOCK_T * ROTARY angles in float32.
    """
    ROWS: tl.constexpr = BLOCK_T * BLOCK_H
    row_of_block = tl.arange(0, ROWS)[:, None]
    first_token = tl.program_id(0) // blocks * BLOCK_T
    first_head = (tl.program_id(0) % blocks - FIRST) * BLOCK_H
    its_token = first_token + row_of_block // BLOCK_H
    head = (first_head + row_of_block % BLOCK_H).to(tl.int64)
    keep = (its_token < tokens) & (head < heads)
    t += (its_token // columns).to(tl.int64) * t_row + (its_token % columns).to(tl.int64) * t_column
    t += head * t_head
    if IN_PLACE:
        out = t
    else:
        out += its_token.to(tl.int64) * heads * WIDTH + head * WIDTH

    # Load t first: the load is under way while the positions and the angles are computed.
    feature = tl.arange(0, BLOCK)
    inside = keep & (feature < WIDTH)[None, :]
    x = tl.load(t + feature[None, :], mask=inside)
    z = partners(x, t, keep, ROTARY, INTERLEAVED)

    token = first_token + tl.arange(0, BLOCK_T)
    exists = token < tokens
    row, column = token // columns, token % columns
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
        position += tl.load(start_positions + sequence, mask=exists, other=0)

    # One thread computes the cos and sin of a token's feature for all heads.
    freqs += (position.to(tl.int64) * freqs_row)[:, None]
    partner, first = partner_of(feature, ROTARY, INTERLEAVED)
    turns = (feature < ROTARY)[None, :]
    angle = tl.load(freqs + feature[None, :], mask=exists[:, None] & turns, other=0).to(tl.float32)
    cos = tl.cos(angle)
    if TRANSPOSED:  # backward: the sine of the partner, with the other sign
        angle = -tl.load(freqs + partner[None, :], mask=exists[:, None] & turns, other=0)
    sin = tl.sin(angle.to(tl.float32))
    sin = tl.where(first[None, :], -sin, sin)
    cos, sin = _for_each_head(cos, BLOCK_H), _for_each_head(sin, BLOCK_H)
    y = x.to(tl.float32) * cos + z.to(tl.float32) * sin
    y = tl.where(turns, y.to(x.dtype), x)
    if IN_PLACE:  # a feature is stored after other threads have read it as a partner
        tl.debug_barrier()
        inside &= turns
    tl.store(out + feature[None, :], y, mask=inside)


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


def _arguments(
    shape, strides, dtype, freqs_shape, freqs_row, sequences, how, transposed, in_place,
    columns_are_heads=False,
):  # fmt: skip
    """Return the grid, the kernel's arguments behind its tensors, and the number of warps.

    columns_are_heads: take the columns of [s, b] as further heads where they lie in memory as heads
    do, since they share a position.
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
    if columns_are_heads and seq_first and sequences is None and t_column == heads * t_head:
        heads, columns = heads * columns, 1
    blocks, *sizes, warps = _blocks(heads, width, dtype.itemsize)
    tokens = rows * columns
    numbers = (tokens, columns, heads, blocks, length, sequences or 0)
    strides = (t_row, t_column, t_head, freqs_row)
    constants = (width, rotary, seq_first, interleaved, transposed, *sizes)
    rest = (*numbers, *strides, cp_size, cp_rank, *constants, 0, in_place)
    return (triton.cdiv(tokens, sizes[0]) * blocks,), rest, warps


@functools.lru_cache(maxsize=1024)
def _plan(dtypes, shape, strides, dtype, freqs_shape, freqs_row, *rest):
    """Return the plan of a launch, None for no tokens; to look it up takes a microsecond."""
    if 0 in shape:
        return None
    if strides is None:
        strides = torch.empty(shape, device="meta").stride()
    if freqs_row is None:
        freqs_row = freqs_shape[-1]
    grid, rest, warps = _arguments(shape, strides, dtype, freqs_shape, freqs_row, *rest)
    return Plan(_rope_kernel, grid, rest, num_warps=warps)


def _launch(t, freqs, starts, ends, how, transposed, in_place=False, kernel=None):
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
        plan = _plan(dtypes, *of_tensors, sequences, how, transposed, in_place, starts is None)
        if plan is not None:
            plan(t, freqs, out, starts, ends)
    elif t.numel():
        of_tensors = t.shape, t.stride(), t.dtype, freqs.shape, freqs.stride(0)
        grid, rest, warps = _arguments(*of_tensors, sequences, how, transposed, in_place)
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
