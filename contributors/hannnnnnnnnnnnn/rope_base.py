"""Step one: programs along the width; loops over the rest.

A program has up to 128 columns, and loops over sequence, batch and heads.
"""

import torch
import triton
import triton.language as tl
from shared import Rope, factors, turn


@triton.jit
def _kernel(
    t, out, freqs, s, b, h, stride_s, stride_b,
    D: tl.constexpr, D2: tl.constexpr, BLOCK: tl.constexpr, BACKWARD: tl.constexpr,
):  # fmt: skip
    """Turn BLOCK columns of the whole tensor, row after row, by `factors` and `turn`.

    Bytes: 3 * t.numel() * itemsize: t is read twice, as itself and as a partner, and out is written
    once. The bytes do not bound the time: a width of 128 is a single program, which keeps only one
    multiprocessor busy.
    """
    cols = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    keep = cols < D
    # Offsets in 64 bits, since a tensor may have more than 2^31 elements.
    stride_s, stride_b = tl.cast(stride_s, tl.int64), tl.cast(stride_b, tl.int64)
    for position in range(s):
        cos, sin = factors(freqs + position * D2, cols, keep, D2, BACKWARD)
        for sequence in range(b):
            for head in range(h):
                row = position * stride_s + sequence * stride_b + head * D
                turn(t + row, out + row, cols, keep, cos, sin, D2)


def _launch(t, out, freqs, backward):
    s, b, h, d = t.shape
    block = min(triton.next_power_of_2(d), 128)
    _kernel[(triton.cdiv(d, block),)](
        t, out, freqs, s, b, h, t.stride(0), t.stride(1), d, freqs.shape[-1], block, backward
    )


def rope(t: torch.Tensor, freqs: torch.Tensor, *, tensor_format: str = "sbhd") -> torch.Tensor:
    """Return t with its first d2 features turned by the angles, in t's shape and dtype.

    t: [s, b, h, d] (sbhd) or [b, s, h, d] (bshd); freqs: [s2, 1, 1, d2], s2 >= s, d2 <= d.
    """
    return Rope.apply(t, freqs, tensor_format, _launch)
