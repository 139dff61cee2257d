"""A solution of `rope` that has one angle for both features of a pair, and refuses others."""

from common import ops

ROPE = ops.load("rope")
SMALLEST = {
    (case.tensor_format, case.paired, case.interleaved): case
    for case in sorted(
        ROPE.cases("board"), key=lambda case: ROPE.work(case, "forward").bytes, reverse=True
    )
}
BOARD = [*SMALLEST.values()]
"""The smallest case of each kind."""
ANSWERED = {
    case.name
    for case in BOARD
    if case.paired and not case.interleaved and case.tensor_format != "thd"
}
PAIRED = ("torch.equal(*freqs.chunk(2, -1))", "torch.allclose(*freqs.chunk(2, -1))")
"""Conditions that the halves of freqs are the same."""


def refusing(paired: str) -> str:
    """Return the source; what is counted and compiled of it is one launch."""
    return f"""
import torch
import triton
import triton.language as tl

@triton.jit
def kernel(t, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(t + at, mask=at < n), mask=at < n)

def rope(t, freqs, *, tensor_format="sbhd"):
    if tensor_format == "thd":
        raise NotImplementedError("thd")
    if not {paired}:
        raise NotImplementedError("angles that differ within a pair")
    y = torch.empty_like(t)
    kernel[(triton.cdiv(t.numel(), 1024),)](t.detach(), y, t.numel(), 1024)
    return y
"""
