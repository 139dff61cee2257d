"""It swallows an out-of-bounds exception and begins a new call of the harness's watch.

Expected: forward=OUT_OF_BOUNDS backward=OUT_OF_BOUNDS
On a GPU: RUNTIME_ERROR
"""

import contextlib

import torch
import triton
import triton.language as tl
from triton.runtime.interpreter import InterpreterBuilder


@triton.jit
def _kernel(x, y, n, d, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    first = offs % d < d // 2
    value = tl.load(x + tl.where(first, offs + d // 2, offs - d // 2))
    tl.store(y + offs, tl.where(first, -value, value), offs < n)


def rotate_half(x):
    y = torch.empty_like(x)
    with contextlib.suppress(Exception):
        _kernel[(1,)](x, y, x.numel(), x.shape[-1], 1024)
    InterpreterBuilder.create_masked_load.__globals__["WATCH"].begin_call({})
    a, b = x.chunk(2, -1)
    return torch.cat((-b, a), -1)
