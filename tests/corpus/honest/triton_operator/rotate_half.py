"""Both directions are Triton operators (`torch.library.triton_op`).

Expected: forward=PASSED backward=PASSED
"""

import torch
import triton
import triton.language as tl
from torch.library import triton_op


@triton.jit
def _kernel(x, y, n, d, BACKWARD: tl.constexpr, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    first = offs % d < d // 2
    partner = tl.where(first, offs + d // 2, offs - d // 2)
    value = tl.load(x + partner, mask)
    tl.store(y + offs, tl.where(first != BACKWARD, -value, value), mask)


@triton_op("honest_triton::turned", mutates_args={})
def turned(x: torch.Tensor, backward: bool) -> torch.Tensor:
    x = x.contiguous()
    y = torch.empty_like(x)
    n = x.numel()
    if n:
        _kernel[(triton.cdiv(n, 256),)](x, y, n, x.shape[-1], backward, 256)
    return y


turned.register_autograd(lambda ctx, grad: (turned(grad, True), None))


def rotate_half(x):
    return turned(x.contiguous(), False)
