"""The device functions of rope.py."""

import triton
import triton.language as tl


@triton.jit
def angles_of(freqs, position, pair, strides, D2: tl.constexpr, TRANSPOSED: tl.constexpr):
    """cos and sin of a pair's features; with TRANSPOSED the sines change places and sign"""
    at = freqs + position * strides[0] + pair * strides[3]
    a1 = tl.load(at, mask=pair < D2 // 2, other=0)
    a2 = tl.load(at + D2 // 2 * strides[3], mask=pair < D2 // 2, other=0)
    if TRANSPOSED:
        return tl.cos(a1), tl.cos(a2), -tl.sin(a2), -tl.sin(a1)
    else:
        return tl.cos(a1), tl.cos(a2), tl.sin(a1), tl.sin(a2)


@triton.jit(noinline=False)
def turn(x1, x2, cos1, cos2, sin1, sin2):
    """y1 = x1 cos1 - x2 sin1, y2 = x2 cos2 + x1 sin2"""
    x1, x2 = x1.to(tl.float32), x2.to(tl.float32)
    return x1 * cos1 - x2 * sin1, x2 * cos2 + x1 * sin2
