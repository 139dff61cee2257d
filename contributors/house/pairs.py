"""Loads and stores of a rotation's pairs in both layouts, all of them contiguous.

The half-split layout pairs element j of a row with j + HALF, the interleaved one 2j with 2j + 1.
`rows` [rows, 1] points at the first element of each row; `keep` [rows, 1] masks the rows that
exist; BLOCK is HALF rounded up to a power of two.
"""

import triton
import triton.language as tl


@triton.jit
def load_pairs(rows, keep, HALF: tl.constexpr, BLOCK: tl.constexpr, INTERLEAVED: tl.constexpr):
    """Return the first and the second members of all pairs, two float32 blocks [rows, BLOCK]."""
    if INTERLEAVED:
        # Load whole rows and split them in registers: a load of stride 2 would fetch lines twice.
        cols = tl.arange(0, 2 * BLOCK)[None, :]
        x = tl.load(rows + cols, mask=keep & (cols < 2 * HALF))
        x1, x2 = tl.split(tl.reshape(x, [x.shape[0], BLOCK, 2]))
    else:
        cols = tl.arange(0, BLOCK)[None, :]
        x1 = tl.load(rows + cols, mask=keep & (cols < HALF))
        x2 = tl.load(rows + HALF + cols, mask=keep & (cols < HALF))
    return x1.to(tl.float32), x2.to(tl.float32)


@triton.jit
def store_pairs(rows, keep, y1, y2, HALF: tl.constexpr, INTERLEAVED: tl.constexpr):
    """Store the pairs (y1, y2), both [rows, BLOCK], rounded to the dtype of `rows`."""
    BLOCK: tl.constexpr = y1.shape[1]
    if INTERLEAVED:
        cols = tl.arange(0, 2 * BLOCK)[None, :]
        y = tl.reshape(tl.join(y1, y2), [y1.shape[0], 2 * BLOCK])
        tl.store(rows + cols, y, mask=keep & (cols < 2 * HALF))
    else:
        cols = tl.arange(0, BLOCK)[None, :]
        tl.store(rows + cols, y1, mask=keep & (cols < HALF))
        tl.store(rows + HALF + cols, y2, mask=keep & (cols < HALF))
