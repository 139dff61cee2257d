"""Blocks of one token's heads, in memory's order; wide loads.

All formats and options are one kernel, and backward is the same kernel with other signs.
"""

import torch
import triton
import triton.language as tl

from .launching import Launches, call_of, check, described, transposed, version
from .operators import linear, traced
from .pairs import partner_of, partners
from .trigonometry import cos_sin


@triton.jit
def _find_sequence(cu_seqlens, token, sequences, CP_SIZE: tl.constexpr, BLOCK: tl.constexpr):
    """Return the last sequence that begins at or before each token; it is never an empty one."""
    begun = tl.zeros_like(token)
    for first in range(0, sequences, BLOCK):
        sequence = first + tl.arange(0, BLOCK)
        start = tl.load(cu_seqlens + sequence, mask=sequence < sequences, other=2**31 - 1)
        begun += tl.sum((start[None, :] // CP_SIZE <= token[:, None]).to(tl.int32), axis=1)
    return begun - 1


@triton.jit
def _find_start(cu_seqlens, token, sequences, CP_SIZE: tl.constexpr, BLOCK: tl.constexpr):
    """Return the start and the end of each token's sequence: its last entry and the first behind.

    One maximum behind the loop, where counting has a sum in each turn: faster from two turns on.
    """
    start = tl.zeros([token.shape[0], BLOCK], tl.int32)
    end = start + 2147483647
    for first in range(0, sequences, BLOCK):
        sequence = first + tl.arange(0, BLOCK)
        inside = sequence < sequences
        entry = (tl.load(cu_seqlens + sequence, mask=inside, other=0) // CP_SIZE)[None, :]
        start = tl.maximum(start, tl.where(entry <= token[:, None], entry, 0))
        if CP_SIZE > 1:
            entry = (tl.load(cu_seqlens + sequence + 1, mask=inside, other=0) // CP_SIZE)[None, :]
            end = tl.minimum(end, tl.where(entry > token[:, None], entry, 2147483647))
    return tl.max(start, axis=1), tl.min(end, axis=1)


@triton.jit
def _for_each_head(values, HEADS: tl.constexpr):
    """Return values [tokens, features] as [tokens * HEADS, features]: each row HEADS times."""
    TOKENS: tl.constexpr = values.shape[0]
    FEATURES: tl.constexpr = values.shape[1]
    values = tl.broadcast_to(values[:, None, :], [TOKENS, HEADS, FEATURES])
    return tl.reshape(values, [TOKENS * HEADS, FEATURES])


@triton.jit
def _features(
    TILE: tl.constexpr, WIDTH: tl.constexpr, SPLIT: tl.constexpr,
    BLOCK: tl.constexpr, BLOCK_2: tl.constexpr,
):  # fmt: skip
    """Return the features [1, BLOCK] of a tile, and which of them exist."""
    if TILE == 0:
        feature = tl.arange(0, BLOCK)[None, :]
        exists = feature < SPLIT
    else:
        feature = SPLIT + tl.arange(0, BLOCK_2)[None, :]
        exists = feature < WIDTH
    return feature, exists


@triton.jit
def _angles_of(
    freqs, exists, feature, ROTARY: tl.constexpr, INTERLEAVED: tl.constexpr,
    TRANSPOSED: tl.constexpr,
):  # fmt: skip
    """Return the cosines and the sines, with their signs, of the features at each position.

    One thread computes them for all heads. `freqs` [tokens, 1] points at the positions' angles.
    """
    partner, first = partner_of(feature, ROTARY, INTERLEAVED)
    exists = exists & (feature < ROTARY)
    angle = tl.load(freqs + feature, mask=exists, other=0).to(tl.float32)
    other = angle
    if TRANSPOSED:  # backward: the sine of the partner, with the other sign
        other = -tl.load(freqs + partner, mask=exists, other=0)
    cos, sin = cos_sin(angle, other.to(tl.float32))
    return cos, tl.where(first, -sin, sin)


@triton.jit
def _rope_kernel(
    t, freqs, out, start_positions, cu_seqlens,
    tokens, columns, heads, blocks, length, sequences,
    t_row, t_column, t_head, freqs_row, CP_SIZE: tl.constexpr, cp_rank,
    WIDTH: tl.constexpr, ROTARY: tl.constexpr, SEQ_FIRST: tl.constexpr,
    INTERLEAVED: tl.constexpr, TRANSPOSED: tl.constexpr,
    BLOCK_T: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK: tl.constexpr,
    BLOCK_2: tl.constexpr, SPLIT: tl.constexpr, TURNS: tl.constexpr,
    FIRST: tl.constexpr, IN_PLACE: tl.constexpr, MANY: tl.constexpr = False,
):  # fmt: skip
    """Turn heads of BLOCK_T tokens: y1 = x1 cos1 - x2 sin1, y2 = x2 cos2 + x1 sin2.

    In one line for both members of a pair, where z is x's partner: y = x cos + z (-sin or sin).
    The tokens stand in a table [s, b] (sbhd), [b, s] (bshd) or [tokens, 1] (thd). The blocks
    of a token's heads are neighbours, so that memory is read and written from front to back;
    FIRST is the one of the first head, and IN_PLACE says that out is t (both for `rotary.py`). MANY
    says that thd has more than BLOCK sequences, whose numbers are not needed.

    A program has TURNS times BLOCK_H heads; a thread has as many of the first as of each further
    BLOCK_H. A head's features are a tile of BLOCK or, with BLOCK_2, two, the second from SPLIT on.

    Bytes: 2 * t.numel() * itemsize, since t is read once and out is written once, and each program
    reads BLOCK_T * ROTARY angles in float32.
    """
    ROWS: tl.constexpr = BLOCK_T * BLOCK_H
    TILES: tl.constexpr = 1 if BLOCK_2 == 0 else 2
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

    # Load t first: the loads are under way while the positions and the angles are computed.
    loaded = ()
    for tile in tl.static_range(TILES):
        for turn in tl.static_range(TURNS):
            rows = t + turn * BLOCK_H * t_head
            feature, exists = _features(tile, WIDTH, SPLIT, BLOCK, BLOCK_2)
            x = tl.load(rows + feature, mask=keep & exists)
            z = x
            if tile * SPLIT < ROTARY:
                z = partners(x, rows, feature, keep, ROTARY, INTERLEAVED)
            loaded += ((x, z),)

    token = first_token + tl.arange(0, BLOCK_T)
    exists = token < tokens
    row, column = token // columns, token % columns
    if MANY:
        start, end = _find_start(cu_seqlens, token, sequences, CP_SIZE, BLOCK)
        position, length = token - start, end - start
    elif cu_seqlens is not None:
        sequence = _find_sequence(cu_seqlens, token, sequences, CP_SIZE, BLOCK)
        start = tl.load(cu_seqlens + sequence) // CP_SIZE
        length = tl.load(cu_seqlens + sequence + 1) // CP_SIZE - start
        position = token - start
    elif SEQ_FIRST:
        sequence, position = column, row
    else:
        sequence, position = row, column
    if CP_SIZE > 1:  # this rank has a sequence's chunk cp_rank and its mirror from the end
        chunk = length // 2
        position += chunk * tl.where(position < chunk, cp_rank, 2 * (CP_SIZE - 1) - cp_rank)
    if start_positions is not None:
        position += tl.load(start_positions + sequence, mask=exists, other=0)

    freqs += (position.to(tl.int64) * freqs_row)[:, None]
    angles = ()
    for tile in tl.static_range(TILES):
        if tile * SPLIT < ROTARY:
            feature, _ = _features(tile, WIDTH, SPLIT, BLOCK, BLOCK_2)
            cos, sin = _angles_of(freqs, exists[:, None], feature, ROTARY, INTERLEAVED, TRANSPOSED)
            angles += ((_for_each_head(cos, BLOCK_H), _for_each_head(sin, BLOCK_H)),)

    if IN_PLACE:  # a feature is stored after other threads have read it as a partner
        tl.debug_barrier()
    for tile in tl.static_range(TILES):
        feature, exists = _features(tile, WIDTH, SPLIT, BLOCK, BLOCK_2)
        turned = feature < ROTARY
        for turn in tl.static_range(TURNS):
            x, z = loaded[tile * TURNS + turn]
            y, inside = x, keep & exists
            if tile * SPLIT < ROTARY:
                cos, sin = angles[tile]
                y = x.to(tl.float32) * cos + z.to(tl.float32) * sin
                y = tl.where(turned, y.to(x.dtype), x)
            if IN_PLACE:
                inside &= turned
                tl.store(out + turn * BLOCK_H * t_head + feature, y, mask=inside)
            else:
                tl.store(out + turn * BLOCK_H * WIDTH + feature, y, mask=inside)


_launch = Launches(_rope_kernel)


def _trace(kernel, t, freqs, starts, ends, *options):
    *how, transposed = options
    call = freqs, starts, ends, tuple(how), transposed
    return _launch(t, *call) if kernel is None else _launch.ordinary(kernel, t, *call)


def _check(t, freqs, starts, ends, *options):
    check(t, freqs, *described(starts, ends), options[:-1])


_operator = linear(
    "rope",
    "(Tensor t, Tensor freqs, Tensor? starts, Tensor? ends, str tensor_format, bool interleaved,"
    " int cp_size, int cp_rank, bool transposed) -> Tensor",
    tensors=4,
    launch=_trace,
    check=_check,
    kernel=_rope_kernel,
    instead="t has a dimension for batches, and heads may hold another",
)


class _Rope(torch.autograd.Function):
    @staticmethod
    def forward(ctx, t, call):
        ctx.call, ctx.version = call, version(call)
        return _launch(t, *call)

    @staticmethod
    def backward(ctx, grad):
        return _turned(grad, transposed(ctx)), None


# Function.apply less its preparation for torch.func, which never comes here
_apply = super(torch.autograd.Function, _Rope).apply


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

    Raises:
        ValueError: The shapes, the dtypes and the options do not fit, or freqs requires a gradient.
            No value of start_positions or cu_seqlens is looked at: the GPU would be waited for.
    """
    call = call_of(freqs, tensor_format, interleaved, start_positions, cu_seqlens, cp_size, cp_rank)
    if traced():
        *tensors, how = call
        return _operator(t, *tensors, *how, False)
    return _turned(t, (*call, False))
