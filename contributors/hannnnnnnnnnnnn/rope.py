"""Third step: a program for each position, batch and head turns both halves at once."""

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
    """forward   y1 = x1 cos1 - x2 sin1    y2 = x2 cos2 + x1 sin2
    backward  x1 = y1 cos1 + y2 sin2    x2 = y2 cos2 - y1 sin1    (gradients of y1 and y2)

    Bytes: t read once, because whoever holds x1 and x2 needs neither again, and out written once.
    The D2 angles of a position are read by each of its b * h programs, from the caches.
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
    if BACKWARD:  # the partner's sine, and the other sign
        sin1, sin2 = -sin2, -sin1
    tl.store(out + row + cols, x1 * tl.cos(angle1) - x2 * sin1, mask=keep)
    tl.store(out + row + HALF + cols, x2 * tl.cos(angle2) + x1 * sin2, mask=keep)
    if D > D2:  # the rest of the row is copied
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
    """t: [s, b, h, d] (sbhd) or [b, s, h, d] (bshd); freqs: [s2, 1, 1, d2], s2 >= s, d2 <= d."""
    return Rope.apply(t, freqs, tensor_format, _launch)
