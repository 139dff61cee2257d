"""It reads behind its argument, and numpy finds no lane outside for the harness's watch.

Expected: forward=TAMPERED backward=TAMPERED
"""

import numpy as np
import torch
import triton
import triton.language as tl


@triton.jit
def _kernel(x, y, n, d, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    first = offs % d < d // 2
    value = tl.load(x + tl.where(first, offs + d // 2, offs - d // 2))
    tl.store(y + offs, tl.where(first, -value, value), offs < n)


def rotate_half(x):
    np.ones = np.zeros
    x = x.contiguous()
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if n := x.numel():
        _kernel[(triton.cdiv(n, 64),)](x, y, n, x.shape[-1], 64)
    return y
