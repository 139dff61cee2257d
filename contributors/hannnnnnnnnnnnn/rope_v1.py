"""Step two: tiles; one cos and sin for all batches and heads.

A tile has 16 positions by up to 128 columns; its program loops over batch and heads.
"""

import torch
import triton
import triton.language as tl
from shared import Rope, factors, turn


@triton.jit
def _kernel(
    t, out, freqs, s, b, h, stride_s, stride_b,
    D: tl.constexpr, D2: tl.constexpr, BLOCK_S: tl.constexpr, BLOCK_D: tl.constexpr,
    BACKWARD: tl.constexpr,
):  # fmt: skip
    """Turn BLOCK_S positions by BLOCK_D columns in every batch and head, by `factors` and `turn`.

    Bytes: 3 * t.numel() * itemsize + s * D2 * 4: t is read twice, as itself and as a partner, out
    is written once, and freqs (float32) is read once.
    """
    position = tl.program_id(0) * BLOCK_S + tl.arange(0, BLOCK_S)[:, None]
    cols = tl.program_id(1) * BLOCK_D + tl.arange(0, BLOCK_D)[None, :]
    keep = (position < s) & (cols < D)
    cos, sin = factors(freqs + position * D2, cols, keep, D2, BACKWARD)
    # Offsets in 64 bits, since a tensor may have more than 2^31 elements.
    stride_s, stride_b = tl.cast(stride_s, tl.int64), tl.cast(stride_b, tl.int64)
    for sequence in range(b):
        for head in range(h):
            row = position * stride_s + sequence * stride_b + head * D
            turn(t + row, out + row, cols, keep, cos, sin, D2)


def _launch(t, out, freqs, backward):
    s, b, h, d = t.shape
    block_s, block_d = 16, min(triton.next_power_of_2(d), 128)
    _kernel[triton.cdiv(s, block_s), triton.cdiv(d, block_d)](
        t, out, freqs, s, b, h, t.stride(0), t.stride(1),
        d, freqs.shape[-1], block_s, block_d, backward,
    )  # fmt: skip


def rope(t: torch.Tensor, freqs: torch.Tensor, *, tensor_format: str = "sbhd") -> torch.Tensor:
    """Return t with its first d2 features turned by the angles, in t's shape and dtype.

    t: [s, b, h, d] (sbhd) or [b, s, h, d] (bshd); freqs: [s2, 1, 1, d2], s2 >= s, d2 <= d.
    """
    return Rope.apply(t, freqs, tensor_format, _launch)
