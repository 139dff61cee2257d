"""One program a token; cos and sin once for a block of heads.

All formats and options are one kernel, and backward is the same kernel with other signs.
"""

import functools

import torch
import triton
import triton.language as tl
from launch import Plan
from operators import linear, traced
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
    FIRST: tl.constexpr, IN_PLACE: tl.constexpr,
):  # fmt: skip
    """Turn BLOCK_H heads of one token: y1 = x1 cos1 - x2 sin1, y2 = x2 cos2 + x1 sin2.

    FIRST, IN_PLACE: the block that begins with the first head, and whether out is t (`rotary.py`).

    The tokens stand in a table [s, b] (sbhd), [b, s] (bshd) or [tokens, 1] (thd).

    Bytes: 2 * t.numel() * itemsize, since t is read once and out is written once, and each program
    reads ROTARY angles in float32.
    """
    HALF: tl.constexpr = ROTARY // 2
    token = tl.program_id(0)
    row, column = (token // columns).to(tl.int64), (token % columns).to(tl.int64)
    head = ((tl.program_id(1) - FIRST) * BLOCK_H + tl.arange(0, BLOCK_H)[:, None]).to(tl.int64)
    keep = head < heads
    t += row * t_row + column * t_column + head * t_head
    if IN_PLACE:
        out = t
    else:
        out += token.to(tl.int64) * heads * WIDTH + head * WIDTH

    # Load t first: the load is under way while the position and the angles are computed.
    x1, x2 = load_pairs(t, keep, HALF, BLOCK, INTERLEAVED)
    if WIDTH > ROTARY and not IN_PLACE:
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
    if IN_PLACE:  # every thread has loaded its pairs
        tl.debug_barrier()
    store_pairs(out, keep, y1, y2, HALF, INTERLEAVED)
    if WIDTH > ROTARY and not IN_PLACE:
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
    blocks, block_h, block, rest, warps = _blocks(heads, width, rotary, dtype.itemsize)
    numbers = (columns, heads, length, sequences or 0, t_row, t_column, t_head, freqs_row)
    constants = (width, rotary, seq_first, interleaved, transposed, block_h, block, rest)
    rest = (*numbers, cp_size, cp_rank, *constants, 0, in_place)
    return (rows * columns, blocks), rest, warps


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
