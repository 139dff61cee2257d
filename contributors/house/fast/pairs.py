"""The partner of each feature in a rotation, fetched by wide accesses in both layouts.

The half-split layout pairs feature j of a row with j + ROTARY / 2, the interleaved one 2j with
2j + 1; features from ROTARY on have no partner.
"""

import triton
import triton.language as tl


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
