"""One program a token; cos and sin once for a block of heads.

All formats and options are one kernel, and backward is the same kernel with other signs.
"""

import functools

import torch
import triton
import triton.language as tl
from launch import Plan
from pairs import load_pairs, store_pairs


@triton.jit
def _find_sequence(cu_seqlens, token, sequences, cp_size):
    """Return the last sequence that begins at or before `token`; it is never an empty one."""
    low, high = 0, sequences
    while high - low > 1:
        middle = (low + high) // 2
        if tl.load(cu_seqlens + middle) // cp_size <= token:
            low = middle
        else:
            high = middle
    return low


@triton.jit
def _rope_kernel(
    t, freqs, out, start_positions, cu_seqlens,
    columns, heads, length, sequences, t_row, t_column, t_head, freqs_row, cp_size, cp_rank,
    WIDTH: tl.constexpr, ROTARY: tl.constexpr, SEQ_FIRST: tl.constexpr,
    INTERLEAVED: tl.constexpr, TRANSPOSED: tl.constexpr,
    BLOCK_H: tl.constexpr, BLOCK: tl.constexpr, REST: tl.constexpr,
):  # fmt: skip
    """Turn BLOCK_H heads of one token: y1 = x1 cos1 - x2 sin1, y2 = x2 cos2 + x1 sin2.

    The tokens stand in a table [s, b] (sbhd), [b, s] (bshd) or [tokens, 1] (thd).

    Bytes: 2 * t.numel() * itemsize, since t is read once and out is written once, and each program
    reads ROTARY angles in float32.
    """
    HALF: tl.constexpr = ROTARY // 2
    token = tl.program_id(0)
    row, column = (token // columns).to(tl.int64), (token % columns).to(tl.int64)
    head = (tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)[:, None]).to(tl.int64)
    keep = head < heads
    t += row * t_row + column * t_column + head * t_head
    out += token.to(tl.int64) * heads * WIDTH + head * WIDTH

    # Load t first: the load is under way while the position and the angles are computed.
    x1, x2 = load_pairs(t, keep, HALF, BLOCK, INTERLEAVED)
    if WIDTH > ROTARY:
        cols = ROTARY + tl.arange(0, REST)[None, :]
        rest = tl.load(t + cols, mask=keep & (cols < WIDTH))

    if cu_seqlens is not None:
        sequence = _find_sequence(cu_seqlens, token, sequences, cp_size)
        first = tl.load(cu_seqlens + sequence) // cp_size
        length = tl.load(cu_seqlens + sequence + 1) // cp_size - first
        index = token - first
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

    # Here one thread computes an angle's cos and sin for all threads. In the layout of x, each
    # thread would compute all the angles that it needs: 16 times the work at width 128.
    side, pair = tl.arange(0, 2)[:, None], tl.arange(0, BLOCK)[None, :]
    feature = side + 2 * pair if INTERLEAVED else side * HALF + pair
    freqs += position.to(tl.int64) * freqs_row
    angle = tl.load(freqs + feature, mask=pair < HALF, other=0).to(tl.float32)
    cos1, cos2 = tl.split(tl.trans(tl.cos(angle)))
    sin1, sin2 = tl.split(tl.trans(tl.sin(angle)))
    if TRANSPOSED:  # backward: dx1 = g1 cos1 + g2 sin2, dx2 = g2 cos2 - g1 sin1
        sin1, sin2 = -sin2, -sin1
    y1, y2 = x1 * cos1 - x2 * sin1, x2 * cos2 + x1 * sin2
    store_pairs(out, keep, y1, y2, HALF, INTERLEAVED)
    if WIDTH > ROTARY:
        tl.store(out + cols, rest, mask=keep & (cols < WIDTH))


@functools.cache
def _blocks(heads: int, width: int, rotary: int, itemsize: int) -> tuple[int, ...]:
    """Return the number of head blocks, BLOCK_H, BLOCK, REST and num_warps.

    A thread gets one angle and 64 bytes of t, or more, where there are as many. Cached, because
    host time decides small calls: triton.cdiv alone takes a microsecond.
    """
    block = triton.next_power_of_2(max(rotary // 2, 1))
    rest = triton.next_power_of_2(width - rotary)
    row = 2 * block + rest
    most = min(max(2 * block // 32, 1), 8)
    block_h = warps = 1
    while block_h < heads and 2 * block_h * row <= 2048 * most:
        block_h *= 2
    while warps < most and 2 * warps * 2048 <= block_h * row * itemsize:
        warps *= 2
    return triton.cdiv(heads, block_h), block_h, block, rest, warps


def _arguments(shape, stride, dtype, rotary, freqs_row, sequences, options):
    """Return the grid, the kernel's arguments behind its tensors, and the number of warps."""
    seq_first, interleaved, cp, transposed = options
    if sequences is None:
        (rows, columns, heads, width), (t_row, t_column, t_head, _) = shape, stride
        length = rows if seq_first else columns
    else:
        (rows, heads, width), (t_row, t_head, _) = shape, stride
        columns, t_column, length = 1, 0, 0
    blocks, block_h, block, rest, warps = _blocks(heads, width, rotary, dtype.itemsize)
    numbers = (columns, heads, length, sequences or 0, t_row, t_column, t_head, freqs_row, *cp)
    constants = (width, rotary, seq_first, interleaved, transposed, block_h, block, rest)
    return (rows * columns, blocks), (*numbers, *constants), warps


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
