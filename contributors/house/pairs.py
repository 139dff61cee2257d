"""A rotation's pairs in both layouts, loaded and stored by contiguous accesses alone.

Half-split pairs element j of a row with element j + HALF, interleaved pairs 2j with 2j + 1.
`rows` points at the first elements of the rows, [rows, 1]; `keep` says which rows exist;
BLOCK is HALF rounded up to a power of two.
"""

import triton
import triton.language as tl


@triton.jit
def load_pairs(rows, keep, HALF: tl.constexpr, BLOCK: tl.constexpr, INTERLEAVED: tl.constexpr):
    """The first and the second members of all pairs: two float32 blocks [rows, BLOCK]."""
    if INTERLEAVED:
        # A load with stride 2 would fetch each line twice: whole rows, taken apart in registers.
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
    """The reverse: y1 and y2, both [rows, BLOCK], rounded to the type that `rows` points at."""
    BLOCK: tl.constexpr = y1.shape[1]
    if INTERLEAVED:
        cols = tl.arange(0, 2 * BLOCK)[None, :]
        y = tl.reshape(tl.join(y1, y2), [y1.shape[0], 2 * BLOCK])
        tl.store(rows + cols, y, mask=keep & (cols < 2 * HALF))
    else:
        cols = tl.arange(0, BLOCK)[None, :]
        tl.store(rows + cols, y1, mask=keep & (cols < HALF))
        tl.store(rows + HALF + cols, y2, mask=keep & (cols < HALF))
