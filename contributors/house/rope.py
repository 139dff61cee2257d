"""Blocks of one token's heads, in memory's order; cos and sin once a block.

All formats and options are one kernel, and backward is the same kernel with other signs.
"""

import functools

import torch
import triton
import triton.language as tl
from launch import Plan
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
):  # fmt: skip
    """Turn BLOCK_H heads of one token: y1 = x1 cos1 - x2 sin1, y2 = x2 cos2 + x1 sin2.

    In one line for both members of a pair, where z is x's partner: y = x cos + z (-sin or sin).
    The tokens stand in a table [s, b] (sbhd), [b, s] (bshd) or [tokens, 1] (thd). The BLOCKS
    programs of a token are neighbours, so that memory is read and written from front to back.

    Bytes: 2 * t.numel() * itemsize, since t is read once and out is written once, and each program
    reads ROTARY angles in float32.
    """
    token = tl.program_id(0) // BLOCKS
    row, column = (token // columns).to(tl.int64), (token % columns).to(tl.int64)
    head = tl.program_id(0) % BLOCKS * BLOCK_H + tl.arange(0, BLOCK_H)[:, None].to(tl.int64)
    t += row * t_row + column * t_column + head * t_head
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
    tl.store(out + feature[None, :], y, mask=inside)


def _blocks(heads: int, width: int, itemsize: int) -> tuple[int, ...]:
    """Return the number of head blocks, BLOCK_H, BLOCK and num_warps.

    A program has 4 KiB of t: more of them wait for memory at once than with 8 KiB, and fewer
    compute the same angles than with 2 KiB. A thread has at least one angle.
    """
    block = max(triton.next_power_of_2(width), 2)
    block_h = min(triton.next_power_of_2(heads), max(4096 // (block * itemsize), 1))
    return triton.cdiv(heads, block_h), block_h, block, min(max(block // 32, 1), 4)


def _arguments(shape, stride, dtype, rotary, freqs_row, sequences, options):
    """Return the grid, the kernel's arguments behind its tensors, and the number of warps."""
    seq_first, interleaved, cp, transposed = options
    if sequences is None:
        (rows, columns, heads, width), (t_row, t_column, t_head, _) = shape, stride
        length = rows if seq_first else columns
    else:
        (rows, heads, width), (t_row, t_head, _) = shape, stride
        columns, t_column, length = 1, 0, 0
    blocks, block_h, block, warps = _blocks(heads, width, dtype.itemsize)
    numbers = (columns, heads, length, sequences or 0, t_row, t_column, t_head, freqs_row, *cp)
    constants = (width, rotary, seq_first, interleaved, transposed, blocks, block_h, block)
    return (rows * columns * blocks,), (*numbers, *constants), warps


@functools.lru_cache(maxsize=1024)
def _plan(key, freqs_dtype, starts_dtype):
    """Return the plan of a launch; a call that only looks it up takes a microsecond."""
    grid, rest, warps = _arguments(*key)
    return Plan(_rope_kernel, grid, rest, num_warps=warps)


def _launch(t, freqs, start_positions, cu_seqlens, options):
    """Return t turned; the options are seq_first, interleaved, (cp_size, cp_rank), transposed."""
    out = torch.empty_like(t, memory_format=torch.contiguous_format)
    if not t.numel():
        return out
    t = t if t.stride(-1) == 1 else t.contiguous()
    freqs = freqs if freqs.stride(-1) == 1 else freqs.contiguous()
    sequences = None if cu_seqlens is None else cu_seqlens.numel() - 1
    key = (t.shape, t.stride(), t.dtype, freqs.shape[-1], freqs.stride(0), sequences, options)
    tensors = (t, freqs, out, start_positions, cu_seqlens)
    if torch.compiler.is_compiling():  # it takes a kernel's launch into its graph, and no plan's
        grid, rest, warps = _arguments(*key)
        _rope_kernel[grid](*tensors, *rest, num_warps=warps)
    else:
        integers = start_positions if cu_seqlens is None else cu_seqlens
        _plan(key, freqs.dtype, None if integers is None else integers.dtype)(*tensors)
    return out


class _Rope(torch.autograd.Function):
    @staticmethod
    def forward(ctx, t, freqs, start_positions, cu_seqlens, options):
        ctx.save_for_backward(freqs, start_positions, cu_seqlens)
        ctx.options = options
        return _launch(t, freqs, start_positions, cu_seqlens, (*options, False))

    @staticmethod
    def backward(ctx, grad):
        grad = _launch(grad, *ctx.saved_tensors, (*ctx.options, True))
        return grad, None, None, None, None


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
    if start_positions is not None:
        if cp_size > 1:
            raise NotImplementedError("start_positions with context parallelism")
        start_positions = start_positions.contiguous()
    cu_seqlens = cu_seqlens.contiguous() if tensor_format == "thd" else None
    options = (tensor_format != "bshd", bool(interleaved), (cp_size, cp_rank))
    if t.requires_grad and torch.is_grad_enabled():
        return _Rope.apply(t, freqs, start_positions, cu_seqlens, options)
    return _launch(t, freqs, start_positions, cu_seqlens, (*options, False))
