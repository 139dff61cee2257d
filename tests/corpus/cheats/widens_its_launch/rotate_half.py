"""Its kernel, which is Python without a GPU, names all memory an argument of its launch.

Expected: forward=OUT_OF_BOUNDS backward=OUT_OF_BOUNDS
On a GPU: COMPILE_ERROR
"""

import torch
import triton
import triton.language as tl
from triton.runtime.interpreter import InterpreterBuilder


def _widen():
    watch = InterpreterBuilder.create_masked_load.__globals__["WATCH"]
    everything = type(watch.launch.spans[0])("x", 0, 1 << 63)
    watch.launch = watch.launch._replace(spans=(everything,))


@triton.jit
def _kernel(x, y, n, d, BLOCK: tl.constexpr):
    _widen()
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    first = offs % d < d // 2
    value = tl.load(x + tl.where(first, offs + d // 2, offs - d // 2))
    tl.store(y + offs, tl.where(first, -value, value), offs < n)


def rotate_half(x):
    y = torch.empty_like(x)
    _kernel[(1,)](x, y, x.numel(), x.shape[-1], 1024)
    return y
