"""Blocks of one token's heads, in memory's order; wide loads.

All formats and options are one kernel, and backward is the same kernel with other signs. The
half-split layout pairs feature j of a head with j + ROTARY / 2, the interleaved one 2j with 2j + 1;
features from ROTARY on have no partner.
"""

from typing import NamedTuple

import triton
import triton.language as tl

from .trigonometry import cos_sin, for_each_head

LOOK = tl.constexpr(128)
"""Entries of `cu_seqlens` that the kernel looks at once."""


class Form(NamedTuple):
    """The constants of a launch that say what turns, and what a program has of it."""

    WIDTH: int  # features of a head
    ROTARY: int  # of these turn
    INTERLEAVED: bool
    TRANSPOSED: bool  # backward
    IN_PLACE: bool  # out is t
    BLOCK_P: int  # positions of a program
    BLOCK_B: int  # sequences of it
    BLOCK_H: int  # heads of t at once; a thread has as many of these as of each further ones
    TURNS: int  # how many times BLOCK_H
    BLOCK_K: int  # the same of k
    K_TURNS: int
    BLOCK: int  # features of a tile
    LAST: int  # features of a second tile, where a head has more than BLOCK


@triton.jit
def partner_of(feature, ROTARY: tl.constexpr, INTERLEAVED: tl.constexpr):
    """Return the partner of each feature, and whether the feature is the first of its pair."""
    if INTERLEAVED:
        return feature ^ 1, feature % 2 == 0
    first = feature < ROTARY // 2
    return tl.where(first, feature + ROTARY // 2, feature - ROTARY // 2), first


@triton.jit
def partners(x, heads, feature, stride, keep, ROTARY: tl.constexpr, INTERLEAVED: tl.constexpr):
    """Return the partners of the features x [heads, BLOCK], a block of the same shape.

    `heads` [heads, 1] points at each head's first feature, `stride` is the distance to the next;
    `feature` [1, BLOCK] has the numbers of x's, from an even one on; `keep` masks the heads.
    """
    if INTERLEAVED:  # exchange in registers: a gather would load single elements
        first, second = tl.split(tl.reshape(x, [x.shape[0], x.shape[1] // 2, 2]))
        return tl.reshape(tl.join(second, first), x.shape)
    partner, _ = partner_of(feature, ROTARY, INTERLEAVED)
    # x's lines, which are cached
    return tl.load(heads + partner * stride, mask=keep & (feature < ROTARY))


@triton.jit
def _find(cu_seqlens, token, sequences, CP_SIZE: tl.constexpr, STEP: tl.constexpr):
    """Return the last sequence that begins at or before each token, its start and its end.

    It is never an empty one. The first look takes every STEP-th entry, the second one the STEP
    entries from the last of those on that a token has reached.
    """
    FAR: tl.constexpr = 2**31 - 1
    entry = tl.arange(0, LOOK) * STEP
    start = tl.load(cu_seqlens + entry, mask=entry < sequences, other=FAR) // CP_SIZE
    sequence = (tl.sum((start[None, :] <= token[:, None]).to(tl.int32), axis=1) - 1) * STEP
    entry = sequence[:, None] + tl.arange(0, STEP)[None, :]
    start = tl.load(cu_seqlens + entry, mask=entry < sequences, other=FAR) // CP_SIZE
    end = tl.load(cu_seqlens + entry + 1, mask=entry < sequences, other=FAR) // CP_SIZE
    reached = start <= token[:, None]
    sequence += tl.sum(reached.to(tl.int32), axis=1) - 1
    # by a maximum and a minimum, which wait for no further load
    start = tl.max(tl.where(reached, start, 0), axis=1)
    return sequence, start, tl.min(tl.where(end > token[:, None], end, FAR), axis=1)


@triton.jit
def _lines(
    first, group, block, positions, batch,
    FORM: tl.constexpr, HEADS: tl.constexpr, TURNS: tl.constexpr,
):  # fmt: skip
    """Return row, column and first head of each line of a program, and whether its token exists."""
    line = tl.arange(0, FORM.BLOCK_P * FORM.BLOCK_B * HEADS)[:, None]
    row = first + line // (FORM.BLOCK_B * HEADS)
    column = group * FORM.BLOCK_B + line // HEADS % FORM.BLOCK_B
    head = block * TURNS * HEADS + line % HEADS
    exists = (row < positions) & (column < batch)
    return row.to(tl.int64), column.to(tl.int64), head.to(tl.int64), exists


@triton.jit
def _load(t, lines, heads, strides, FORM: tl.constexpr, HEADS: tl.constexpr, TURNS: tl.constexpr):
    """Return (feature, keep, x, partners of x) of each tile of features and turn of heads."""
    row, column, head, exists = lines
    t += row * strides[0] + column * strides[1] + head * strides[2]
    loaded = ()
    for tile in tl.static_range(2 if FORM.WIDTH > FORM.BLOCK else 1):
        feature = tile * FORM.BLOCK + tl.arange(0, FORM.LAST if tile else FORM.BLOCK)[None, :]
        for turn in tl.static_range(TURNS):
            x_heads = t + turn * HEADS * strides[2]
            keep = exists & (head + turn * HEADS < heads)
            x = tl.load(x_heads + feature * strides[3], mask=keep & (feature < FORM.WIDTH))
            z = x
            if tile * FORM.BLOCK < FORM.ROTARY:
                z = partners(x, x_heads, feature, strides[3], keep, FORM.ROTARY, FORM.INTERLEAVED)
            loaded += ((feature, keep, x, z),)
    return loaded


@triton.jit
def _store(
    out, lines, strides, loaded, angles,
    FORM: tl.constexpr, HEADS: tl.constexpr, TURNS: tl.constexpr,
):  # fmt: skip
    """Turn what `_load` returned, by a quarter where there are no angles; store it."""
    STORED: tl.constexpr = FORM.ROTARY if FORM.IN_PLACE else FORM.WIDTH
    row, column, head, _ = lines
    out += row * strides[0] + column * strides[1] + head * strides[2]
    for tile in tl.static_range(len(loaded) // TURNS):
        for turn in tl.static_range(TURNS):
            feature, keep, x, z = loaded[tile * TURNS + turn]
            y = x
            if len(angles) == 0:
                _, is_first = partner_of(feature, FORM.ROTARY, FORM.INTERLEAVED)
                y = tl.where(is_first != FORM.TRANSPOSED, -z, z)
            elif tile * FORM.BLOCK < FORM.ROTARY:
                cos, sin = angles[tile]
                cos, sin = for_each_head(cos, sin, x.shape[0] // cos.shape[0])
                y = x.to(tl.float32) * cos + z.to(tl.float32) * sin
                y = tl.where(feature < FORM.ROTARY, y.to(x.dtype), x)
            place = out + turn * HEADS * strides[2] + feature * strides[3]
            tl.store(place, y, mask=keep & (feature < STORED))


@triton.jit
def rope_kernel(
    t, k, freqs, out, k_out, start_positions, cu_seqlens,
    positions, batch, heads, k_heads, blocks, groups, sequences,
    t_strides, k_strides, out_strides, k_out_strides, freqs_strides, cp_rank,
    FORM: tl.constexpr, CP_SIZE: tl.constexpr, STEP: tl.constexpr, PDL: tl.constexpr = False,
):  # fmt: skip
    """Turn heads of some positions: y1 = x1 cos1 - x2 sin1, y2 = x2 cos2 + x1 sin2.

    In one line for both members of a pair, where z is x's partner: y = x cos + z (-sin or sin).
    t is a table of positions and the sequences of a batch, whatever the strides (of a position, a
    sequence, a head and a feature); packed tokens are one column. The blocks of a token's heads are
    neighbours, so that memory is read and written from front to back. Without freqs each feature
    turns by a quarter: y1 = -x2, y2 = x1.

    A program has the same heads of BLOCK_P positions and BLOCK_B sequences, and reads a position's
    angles once for all of these, and for k's heads if there is a k. With PDL it begins while the
    kernel before it still runs.

    Bytes: 2 * t.numel() * itemsize, since t is read once and out is written once, the same for k,
    and each program reads BLOCK_P * ROTARY angles in float32.
    """
    # where blocks or groups is 1, Triton knows it: no division
    block, number = tl.program_id(0) % blocks, tl.program_id(0) // blocks
    first, group = number // groups * FORM.BLOCK_P, number % groups + tl.program_id(1)
    lines = _lines(first, group, block, positions, batch, FORM, FORM.BLOCK_H, FORM.TURNS)
    k_lines = _lines(first, group, block, positions, batch, FORM, FORM.BLOCK_K, FORM.K_TURNS)

    if PDL:  # from here on the kernel before this one has ended
        tl.extra.cuda.gdc_wait()
    # Load t first: the loads are under way while the positions and the angles are computed.
    loaded = _load(t, lines, heads, t_strides, FORM, FORM.BLOCK_H, FORM.TURNS)
    if k is not None:
        k_loaded = _load(k, k_lines, k_heads, k_strides, FORM, FORM.BLOCK_K, FORM.K_TURNS)

    row = first + tl.arange(0, FORM.BLOCK_P)
    exists = row < positions
    sequence, position, length = group, row, positions
    if cu_seqlens is not None:
        sequence, start, end = _find(cu_seqlens, row, sequences, CP_SIZE, STEP)
        position, length = row - start, end - start
    if CP_SIZE > 1:  # this rank has a sequence's chunk cp_rank and its mirror from the end
        chunk = length // 2
        position += chunk * tl.where(position < chunk, cp_rank, 2 * (CP_SIZE - 1) - cp_rank)
    if start_positions is not None:
        position += tl.load(start_positions + sequence)

    angles = ()
    if freqs is not None:  # one thread computes an angle's cosine and sine for all heads
        freqs += (position.to(tl.int64) * freqs_strides[0])[:, None]
        for tile in tl.static_range(2 if FORM.ROTARY > FORM.BLOCK else 1):
            feature = tile * FORM.BLOCK + tl.arange(0, FORM.LAST if tile else FORM.BLOCK)[None, :]
            partner, is_first = partner_of(feature, FORM.ROTARY, FORM.INTERLEAVED)
            turned = exists[:, None] & (feature < FORM.ROTARY)
            angle = tl.load(freqs + feature * freqs_strides[1], turned, other=0).to(tl.float32)
            other = angle
            if FORM.TRANSPOSED:  # backward: the sine of the partner, with the other sign
                other = -tl.load(freqs + partner * freqs_strides[1], turned, other=0).to(tl.float32)
            cos, sin = cos_sin(angle, other)
            angles += ((cos, tl.where(is_first, -sin, sin)),)

    if FORM.IN_PLACE:  # a feature is stored after other threads have read it as a partner
        tl.debug_barrier()
    strides = out_strides + (t_strides[2:] if FORM.IN_PLACE else (FORM.WIDTH, 1))
    _store(out, lines, strides, loaded, angles, FORM, FORM.BLOCK_H, FORM.TURNS)
    if k is not None:
        strides = k_out_strides + (k_strides[2:] if FORM.IN_PLACE else (FORM.WIDTH, 1))
        _store(k_out, k_lines, strides, k_loaded, angles, FORM, FORM.BLOCK_K, FORM.K_TURNS)
