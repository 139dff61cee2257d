"""It names all memory an argument of the call, so that no access leaves one.

Expected: forward=TAMPERED backward=TAMPERED
On a GPU: RUNTIME_ERROR
"""

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
    watch = InterpreterBuilder.create_masked_load.__globals__["WATCH"]
    watch.inputs = (type(watch.inputs[0])("x", 0, 1 << 63),)
    y = torch.empty_like(x)
    _kernel[(1,)](x, y, x.numel(), x.shape[-1], 1024)
    return y
