"""Products whose rows and columns are exchanged: each element keeps its bits."""

from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit
def product(a, b, out, M: tl.constexpr, K: tl.constexpr, N: tl.constexpr):
    row, column, depth = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    left = tl.load(a + row[:, None] * K + depth[None, :])
    right = tl.load(b + depth[:, None] * N + column[None, :])
    tl.store(out + row[:, None] * N + column[None, :], tl.dot(left, right, input_precision="ieee"))


def exchanged(m, k, n, dtype):
    """Return a call that multiplies exchanged rows and columns, and what it must give."""
    a, b = torch.randn(m, k).to(dtype), torch.randn(k, n).to(dtype)
    rows, columns = torch.randperm(m), torch.randperm(n)

    def multiplied(left, right):
        out = torch.empty(m, n)
        product[(1,)](left, right, out, m, k, n)
        return out

    return (
        lambda: torch.equal(
            multiplied(a[rows], b[:, columns].contiguous()), multiplied(a, b)[rows][:, columns]
        ),
        True,
    )


CASES = {
    f"{m}x{k}x{n} {dtype}": exchanged(m, k, n, dtype)
    for m, k, n in ((16, 16, 16), (64, 32, 64), (128, 32, 32))
    for dtype in (torch.float32, torch.bfloat16)
}
