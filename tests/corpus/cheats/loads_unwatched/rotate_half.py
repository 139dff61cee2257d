"""It restores the interpreter's own loads, which check no address.

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


def _original(watched):
    return next(cell.cell_contents for cell in watched.__closure__ if callable(cell.cell_contents))


def rotate_half(x):
    InterpreterBuilder.create_masked_load = _original(InterpreterBuilder.create_masked_load)
    y = torch.empty_like(x)
    _kernel[(1,)](x, y, x.numel(), x.shape[-1], 1024)
    return y
