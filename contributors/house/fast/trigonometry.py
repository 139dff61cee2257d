"""Cosine and sine of float32 angles, in a fifth of the instructions of `tl.cos` and `tl.sin`.

An angle x is q quarter turns and a rest r in about [-pi/4, pi/4]. Both functions of r are short
polynomials, and q says which of them, with which sign, is the cosine of x and which is the sine:

    q % 4       0        1        2        3
    cos x    cos r   -sin r   -cos r    sin r
    sin x    sin r    cos r   -sin r   -cos r

The work is in r, which must keep 24 bits when x is a million: x - q pi/2 is taken in three steps,
with pi/2 in three parts of 24 bits. `tl.fma` rounds once, so that the first step loses nothing (the
large digits cancel), and the others only the last bit. Above LARGEST, q would have too many bits;
there libdevice's functions serve, in a branch that a program of ordinary angles does not enter.
"""

import triton
import triton.language as tl

INTERPRETED = tl.constexpr(triton.knobs.runtime.interpret)
LARGEST = tl.constexpr(0x49800000)
"""The bits of 2**20, the largest angle for the polynomials. Positive floats sort as their bits."""


@triton.jit
def cos_sin(angle, other):
    """Return the cosine of `angle` and the sine of `other`, which may be the same block.

    Both are float32; so are the results, which err by at most 1.6 ulp.
    """
    if tl.max(tl.maximum(_magnitude(angle), _magnitude(other))) <= LARGEST:
        quarter, rest = _quarters(angle)
        cos = _of_quarter(quarter + 1, rest)
        quarter, rest = _quarters(other)
        sin = _of_quarter(quarter, rest)
    else:
        cos, sin = tl.cos(angle), -tl.sin(-other)
    return cos, sin


@triton.jit
def for_each_head(cos, sin, HEADS: tl.constexpr):
    """Return both [tokens, features] as [tokens * HEADS, features]: each row HEADS times.

    As the halves of 64 bits, both reach the threads of the heads by one exchange, not by two.
    """
    TOKENS: tl.constexpr = cos.shape[0]
    FEATURES: tl.constexpr = cos.shape[1]
    both = cos.to(tl.uint32, bitcast=True).to(tl.uint64) << 32
    both |= sin.to(tl.uint32, bitcast=True).to(tl.uint64)
    both = tl.broadcast_to(both[:, None, :], [TOKENS, HEADS, FEATURES])
    both = tl.reshape(both, [TOKENS * HEADS, FEATURES])
    cos = (both >> 32).to(tl.uint32).to(tl.float32, bitcast=True)
    return cos, both.to(tl.uint32).to(tl.float32, bitcast=True)


@triton.jit
def _magnitude(x):
    """Return the bits of |x|."""
    return x.to(tl.int32, bitcast=True) & 0x7FFFFFFF


@triton.jit
def _quarters(x):
    """Return the whole number of quarter turns of x, in its low bits, and the rest."""
    shifted = fma(x, 0.6366197723675814, 12582912.0)  # 2 / pi; 1.5 * 2**23 leaves no fraction
    q = shifted - 12582912.0
    rest = fma(q, -1.5707963705062866, x)
    rest = fma(q, 4.371138828673793e-08, rest)
    rest = fma(q, 1.7151245100058819e-15, rest)
    return shifted.to(tl.int32, bitcast=True), rest


@triton.jit
def _of_quarter(quarter, r):
    """Return sin r, cos r, -sin r, -cos r for a quarter of 0, 1, 2, 3."""
    square = r * r
    sin = fma(square, -0.0001948597637237981, 0.008331939578056335)
    sin = fma(square, sin, -0.16666650772094727)
    sin = fma(r * square, sin, r)
    cos = fma(square, 2.4399638277827762e-05, -0.0013887016102671623)
    cos = fma(square, cos, 0.04166663810610771)
    cos = fma(square, cos, -0.5)
    cos = fma(square, cos, 1.0)
    value = tl.where(quarter & 1 != 0, cos, sin)
    sign = (quarter << 30) & -0x80000000
    return (value.to(tl.int32, bitcast=True) ^ sign).to(tl.float32, bitcast=True)


@triton.jit
def fma(a, b, c):
    """Return a b + c, rounded once."""
    if INTERPRETED:  # tl.fma rounds twice there
        return (a.to(tl.float64) * b + c).to(tl.float32)
    return tl.fma(a, b, c)
