"""Blocks of one token's heads, in memory's order; wide loads.

All formats and options are one kernel, and backward is the same kernel with other signs. The
half-split layout pairs feature j of a row with j + ROTARY / 2, the interleaved one 2j with 2j + 1;
features from ROTARY on have no partner.
"""

import triton
import triton.language as tl

from .trigonometry import cos_sin

LOOK = tl.constexpr(128)
"""Entries of `cu_seqlens` that the kernel looks at once."""


@triton.jit
def partner_of(feature, ROTARY: tl.constexpr, INTERLEAVED: tl.constexpr):
    """Return the partner of each feature, and whether the feature is the first of its pair."""
    if INTERLEAVED:
        return feature ^ 1, feature % 2 == 0
    first = feature < ROTARY // 2
    return tl.where(first, feature + ROTARY // 2, feature - ROTARY // 2), first


@triton.jit
def partners(x, rows, feature, keep, ROTARY: tl.constexpr, INTERLEAVED: tl.constexpr):
    """Return the partners of the features x [rows, BLOCK], a block of the same shape.

    `rows` [rows, 1] points at each row's first feature; `feature` [1, BLOCK] has the numbers of
    x's; `keep` [rows, 1] masks the rows.
    """
    if INTERLEAVED:  # exchange in registers: a gather would load single elements
        first, second = tl.split(tl.reshape(x, [x.shape[0], x.shape[1] // 2, 2]))
        return tl.reshape(tl.join(second, first), x.shape)
    partner, _ = partner_of(feature, ROTARY, INTERLEAVED)
    return tl.load(rows + partner, mask=keep & (feature < ROTARY))  # x's lines, which are cached


@triton.jit
def _find(cu_seqlens, token, sequences, CP_SIZE: tl.constexpr):
    """Return the last sequence that begins at or before each token: one of LOOK by each look.

    It is never an empty one.
    """
    found, step = tl.zeros_like(token), 1
    while step * LOOK < sequences:
        step *= LOOK
    while step > 0:
        entry = found[:, None] + step * tl.arange(0, LOOK)[None, :]
        start = tl.load(cu_seqlens + entry, mask=entry < sequences, other=2**31 - 1) // CP_SIZE
        found += step * (tl.sum((start <= token[:, None]).to(tl.int32), 1) - 1)
        step //= LOOK
    return found


@triton.jit
def _for_each_head(values, HEADS: tl.constexpr):
    """Return values [tokens, features] as [tokens * HEADS, features]: each row HEADS times."""
    TOKENS: tl.constexpr = values.shape[0]
    FEATURES: tl.constexpr = values.shape[1]
    values = tl.broadcast_to(values[:, None, :], [TOKENS, HEADS, FEATURES])
    return tl.reshape(values, [TOKENS * HEADS, FEATURES])


@triton.jit
def rope_kernel(
    t, k, freqs, out, k_out, start_positions, cu_seqlens,
    rows, columns, heads, k_heads, sequences,
    t_row, t_column, t_head, k_row, k_column, k_head, freqs_row, cp_rank,
    CP_SIZE: tl.constexpr, WIDTH: tl.constexpr, ROTARY: tl.constexpr, SEQ_FIRST: tl.constexpr,
    INTERLEAVED: tl.constexpr, TRANSPOSED: tl.constexpr, IN_PLACE: tl.constexpr,
    BLOCK_T: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Turn heads of BLOCK_T tokens: y1 = x1 cos1 - x2 sin1, y2 = x2 cos2 + x1 sin2.

    In one line for both members of a pair, where z is x's partner: y = x cos + z (-sin or sin).
    The tokens stand in a table of rows and columns: [s, b] (sbhd), [b, s] (bshd) or [tokens, 1]
    (thd). The blocks of a token's heads are neighbours, so that memory is read and written from
    front to back; those of k, if there is one, follow those of t. IN_PLACE says that out is t.

    Bytes: 2 * t.numel() * itemsize, since t is read once and out is written once, and each program
    reads BLOCK_T * ROTARY angles in float32.
    """
    blocks = tl.cdiv(heads, BLOCK_H)
    all_blocks = blocks if k is None else blocks + tl.cdiv(k_heads, BLOCK_H)
    first_token, block = tl.program_id(0) // all_blocks * BLOCK_T, tl.program_id(0) % all_blocks
    if k is not None:
        of_k = block >= blocks
        t, out = tl.where(of_k, k, t), tl.where(of_k, k_out, out)
        heads, block = tl.where(of_k, k_heads, heads), tl.where(of_k, block - blocks, block)
        t_row, t_column = tl.where(of_k, k_row, t_row), tl.where(of_k, k_column, t_column)
        t_head = tl.where(of_k, k_head, t_head)
    line = tl.arange(0, BLOCK_T * BLOCK_H)[:, None]  # a head of a token
    its_token = first_token + line // BLOCK_H
    head = (block * BLOCK_H + line % BLOCK_H).to(tl.int64)
    keep = (its_token < rows * columns) & (head < heads)
    t += (its_token // columns).to(tl.int64) * t_row + (its_token % columns).to(tl.int64) * t_column
    t += head * t_head
    if IN_PLACE:
        out = t
    else:
        out += (its_token.to(tl.int64) * heads + head) * WIDTH

    # Load t first: the loads are under way while the positions and the angles are computed.
    feature = tl.arange(0, BLOCK)[None, :]
    x = tl.load(t + feature, mask=keep & (feature < WIDTH))
    z = partners(x, t, feature, keep, ROTARY, INTERLEAVED)

    token = first_token + tl.arange(0, BLOCK_T)
    exists = token < rows * columns
    row, column = token // columns, token % columns
    if SEQ_FIRST:
        sequence, position, length = column, row, rows
    else:
        sequence, position, length = row, column, columns
    if cu_seqlens is not None:
        sequence = _find(cu_seqlens, token, sequences, CP_SIZE)
        start = tl.load(cu_seqlens + sequence, mask=exists, other=0) // CP_SIZE
        position = token - start
        if CP_SIZE > 1:
            length = tl.load(cu_seqlens + sequence + 1, mask=exists, other=0) // CP_SIZE - start
    if CP_SIZE > 1:  # this rank has a sequence's chunk cp_rank and its mirror from the end
        chunk = length // 2
        position += chunk * tl.where(position < chunk, cp_rank, 2 * (CP_SIZE - 1) - cp_rank)
    if start_positions is not None:
        position += tl.load(start_positions + sequence, mask=exists, other=0)

    # One thread computes an angle's cosine and sine for all heads.
    freqs += (position.to(tl.int64) * freqs_row)[:, None]
    partner, first = partner_of(feature, ROTARY, INTERLEAVED)
    turns = exists[:, None] & (feature < ROTARY)
    angle = tl.load(freqs + feature, mask=turns, other=0).to(tl.float32)
    other = angle
    if TRANSPOSED:  # backward: the sine of the partner, with the other sign
        other = -tl.load(freqs + partner, mask=turns, other=0).to(tl.float32)
    cos, sin = cos_sin(angle, other)
    cos, sin = _for_each_head(cos, BLOCK_H), _for_each_head(tl.where(first, -sin, sin), BLOCK_H)
    y = (x.to(tl.float32) * cos + z.to(tl.float32) * sin).to(x.dtype)
    inside = keep & (feature < WIDTH)
    if IN_PLACE:  # a feature is stored after other threads have read it as a partner
        tl.debug_barrier()
        inside &= feature < ROTARY
    tl.store(out + feature, tl.where(feature < ROTARY, y, x), mask=inside)
