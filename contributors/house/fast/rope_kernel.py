"""Blocks of one token's heads, in memory's order; wide loads.

All formats and options are one kernel, and backward is the same kernel with other signs. The
half-split layout pairs feature j of a row with j + ROTARY / 2, the interleaved one 2j with 2j + 1;
features from ROTARY on have no partner.
"""

import triton
import triton.language as tl

from .trigonometry import cos_sin


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
    x's, from an even one on; `keep` [rows, 1] masks the rows.
    """
    if INTERLEAVED:  # exchange in registers: a gather would load single elements
        first, second = tl.split(tl.reshape(x, [x.shape[0], x.shape[1] // 2, 2]))
        return tl.reshape(tl.join(second, first), x.shape)
    partner, _ = partner_of(feature, ROTARY, INTERLEAVED)
    return tl.load(rows + partner, mask=keep & (feature < ROTARY))  # x's lines, which are cached


@triton.jit
def _find(cu_seqlens, token, sequences, CP_SIZE: tl.constexpr, STEP: tl.constexpr):
    """Return the last sequence that begins at or before each token, its start and its end.

    It is never an empty one. The first look takes every STEP-th entry, the second one the STEP
    entries from the last of those on that a token has reached.
    """
    entry = tl.arange(0, 128) * STEP
    start = tl.load(cu_seqlens + entry, mask=entry < sequences, other=2**31 - 1) // CP_SIZE
    sequence = (_reached(start[None, :], token) - 1) * STEP
    if STEP == 1:
        start = tl.load(cu_seqlens + sequence) // CP_SIZE
        return sequence, start, tl.load(cu_seqlens + sequence + 1) // CP_SIZE
    entry = sequence[:, None] + tl.arange(0, STEP)[None, :]
    inside = entry < sequences
    start = tl.load(cu_seqlens + entry, mask=inside, other=2**31 - 1) // CP_SIZE
    end = tl.load(cu_seqlens + entry + 1, mask=inside, other=2**31 - 1) // CP_SIZE
    sequence += _reached(start, token) - 1
    # by a maximum and a minimum, which wait for no further load
    start = tl.max(tl.where(start <= token[:, None], start, 0), axis=1)
    return sequence, start, tl.min(tl.where(end > token[:, None], end, 2**31 - 1), axis=1)


@triton.jit
def _reached(start, token):
    """Return how many of the starts [tokens or 1, entries] are at or before each token."""
    return tl.sum((start <= token[:, None]).to(tl.int32), axis=1)


@triton.jit
def _for_each_head(values, HEADS: tl.constexpr):
    """Return values [tokens, features] as [tokens * HEADS, features]: each row HEADS times."""
    TOKENS: tl.constexpr = values.shape[0]
    FEATURES: tl.constexpr = values.shape[1]
    values = tl.broadcast_to(values[:, None, :], [TOKENS, HEADS, FEATURES])
    return tl.reshape(values, [TOKENS * HEADS, FEATURES])


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
def rope_kernel(
    t, freqs, out, start_positions, cu_seqlens,
    tokens, columns, heads, blocks, length, sequences,
    t_row, t_column, t_head, freqs_row, cp_rank,
    CP_SIZE: tl.constexpr, WIDTH: tl.constexpr, ROTARY: tl.constexpr, SEQ_FIRST: tl.constexpr,
    INTERLEAVED: tl.constexpr, TRANSPOSED: tl.constexpr, STEP: tl.constexpr,
    BLOCK_T: tl.constexpr, BLOCK: tl.constexpr, BLOCK_H: tl.constexpr,
    BLOCK_2: tl.constexpr, SPLIT: tl.constexpr, TURNS: tl.constexpr,
    FIRST: tl.constexpr = 0, IN_PLACE: tl.constexpr = False,
):  # fmt: skip
    """Turn heads of BLOCK_T tokens: y1 = x1 cos1 - x2 sin1, y2 = x2 cos2 + x1 sin2.

    In one line for both members of a pair, where z is x's partner: y = x cos + z (-sin or sin).
    The tokens stand in a table [s, b] (sbhd), [b, s] (bshd) or [tokens, 1] (thd). The blocks
    of a token's heads are neighbours, so that memory is read and written from front to back;
    FIRST is the one of the first head, and IN_PLACE says that out is t.

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
            feature = tile * SPLIT + tl.arange(0, BLOCK_2 if tile else BLOCK)[None, :]
            x = tl.load(rows + feature, mask=keep & (feature < (WIDTH if tile else SPLIT)))
            z = x
            if tile * SPLIT < ROTARY:
                z = partners(x, rows, feature, keep, ROTARY, INTERLEAVED)
            loaded += ((x, z),)

    token = first_token + tl.arange(0, BLOCK_T)
    exists = token < tokens
    row, column = token // columns, token % columns
    if cu_seqlens is not None:
        sequence, start, end = _find(cu_seqlens, token, sequences, CP_SIZE, STEP)
        position, length = token - start, end - start
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
            feature = tile * SPLIT + tl.arange(0, BLOCK_2 if tile else BLOCK)[None, :]
            cos, sin = _angles_of(freqs, exists[:, None], feature, ROTARY, INTERLEAVED, TRANSPOSED)
            angles += ((_for_each_head(cos, BLOCK_H), _for_each_head(sin, BLOCK_H)),)

    if IN_PLACE:  # a feature is stored after other threads have read it as a partner
        tl.debug_barrier()
    for tile in tl.static_range(TILES):
        feature = tile * SPLIT + tl.arange(0, BLOCK_2 if tile else BLOCK)[None, :]
        exists, turned = feature < (WIDTH if tile else SPLIT), feature < ROTARY
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


@triton.jit
def rope_qk_kernel(
    q, k, freqs, q_out, k_out, start_positions, cu_seqlens,
    tokens, columns, q_heads, k_heads, blocks, length, sequences,
    q_row, q_column, q_head, k_row, k_column, k_head, freqs_row, cp_rank,
    CP_SIZE: tl.constexpr, WIDTH: tl.constexpr, ROTARY: tl.constexpr, SEQ_FIRST: tl.constexpr,
    INTERLEAVED: tl.constexpr, TRANSPOSED: tl.constexpr, STEP: tl.constexpr,
    BLOCK_T: tl.constexpr, BLOCK: tl.constexpr, Q_BLOCK_H: tl.constexpr,
    Q_BLOCKS: tl.constexpr, K_BLOCK_H: tl.constexpr,
):  # fmt: skip
    """Turn heads of q in the first Q_BLOCKS of a token's blocks, and heads of k in the others."""
    if tl.program_id(0) % blocks < Q_BLOCKS:
        rope_kernel(
            q, freqs, q_out, start_positions, cu_seqlens,
            tokens, columns, q_heads, blocks, length, sequences, q_row, q_column, q_head,
            freqs_row, cp_rank, CP_SIZE, WIDTH, ROTARY, SEQ_FIRST, INTERLEAVED, TRANSPOSED,
            STEP, BLOCK_T, BLOCK, Q_BLOCK_H, 0, WIDTH, 1,
        )  # fmt: skip
    else:
        rope_kernel(
            k, freqs, k_out, start_positions, cu_seqlens,
            tokens, columns, k_heads, blocks, length, sequences, k_row, k_column, k_head,
            freqs_row, cp_rank, CP_SIZE, WIDTH, ROTARY, SEQ_FIRST, INTERLEAVED, TRANSPOSED,
            STEP, BLOCK_T, BLOCK, K_BLOCK_H, 0, WIDTH, 1, Q_BLOCKS,
        )  # fmt: skip
