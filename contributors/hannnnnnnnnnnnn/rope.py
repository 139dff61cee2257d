"""Step three: one program a row; it turns both halves at once.

A row is one head of one position of one sequence. Each feature is loaded once; cos and sin are
computed anew for every head. Steps one and two are `rope_base.py` and `rope_v1.py`.
"""

import torch
import triton
import triton.language as tl
from shared import Rope


@triton.jit
def _kernel(
    t, out, freqs, b, h, stride_s, stride_b,
    D: tl.constexpr, D2: tl.constexpr, BLOCK: tl.constexpr, REST: tl.constexpr,
    BACKWARD: tl.constexpr,
):  # fmt: skip
    """Turn one row of D features; t and out are [s, b, h, D] by their strides.

        forward    y1 = x1 cos1 - x2 sin1    y2 = x2 cos2 + x1 sin2
        backward  dx1 = g1 cos1 + g2 sin2   dx2 = g2 cos2 - g1 sin1

    Bytes: 2 * t.numel() * itemsize: t is read once, since one program needs both x1 and x2, and
    out is written once. Each of the b * h programs of a position reads its D2 angles (float32),
    all but the first from the caches.
    """
    program = tl.program_id(0)
    position, sequence, head = program // (b * h), program // h % b, program % h
    row = position.to(tl.int64) * stride_s + sequence.to(tl.int64) * stride_b + head * D
    HALF: tl.constexpr = D2 // 2
    cols = tl.arange(0, BLOCK)
    keep = cols < HALF
    x1 = tl.load(t + row + cols, mask=keep).to(tl.float32)
    x2 = tl.load(t + row + HALF + cols, mask=keep).to(tl.float32)
    freqs += position.to(tl.int64) * D2
    angle1 = tl.load(freqs + cols, mask=keep, other=0).to(tl.float32)
    angle2 = tl.load(freqs + HALF + cols, mask=keep, other=0).to(tl.float32)
    sin1, sin2 = tl.sin(angle1), tl.sin(angle2)
    if BACKWARD:  # the partner's sine with the other sign
        sin1, sin2 = -sin2, -sin1
    tl.store(out + row + cols, x1 * tl.cos(angle1) - x2 * sin1, mask=keep)
    tl.store(out + row + HALF + cols, x2 * tl.cos(angle2) + x1 * sin2, mask=keep)
    if D > D2:  # copy the rest of the row
        cols = D2 + tl.arange(0, REST)
        tl.store(out + row + cols, tl.load(t + row + cols, mask=cols < D), mask=cols < D)


def _launch(t, out, freqs, backward):
    (s, b, h, d), d2 = t.shape, freqs.shape[-1]
    block = triton.next_power_of_2(max(d2 // 2, 1))
    rest = triton.next_power_of_2(d - d2)
    warps = min(max(block // 64, 1), 4)
    _kernel[(s * b * h,)](
        t, out, freqs, b, h, t.stride(0), t.stride(1), d, d2, block, rest, backward,
        num_warps=warps,
    )  # fmt: skip


def rope(t: torch.Tensor, freqs: torch.Tensor, *, tensor_format: str = "sbhd") -> torch.Tensor:
    """Return t with its first d2 features turned by the angles, in t's shape and dtype.

    t: [s, b, h, d] (sbhd) or [b, s, h, d] (bshd); freqs: [s2, 1, 1, d2], s2 >= s, d2 <= d.
    """
    return Rope.apply(t, freqs, tensor_format, _launch)
