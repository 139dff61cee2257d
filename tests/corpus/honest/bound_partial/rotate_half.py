"""The op is a partial that binds a keyword of its own, the size of a kernel's block.

Expected: forward=PASSED backward=PASSED
"""

import functools

import torch
import triton
import triton.language as tl


@triton.jit
def _kernel(x, y, n, d, BACKWARD: tl.constexpr, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    first = offs % d < d // 2
    partner = tl.where(first, offs + d // 2, offs - d // 2)
    value = tl.load(x + partner, mask)
    tl.store(y + offs, tl.where(first != BACKWARD, -value, value), mask)


def _launch(x, block, backward):
    x = x.contiguous()
    y = torch.empty_like(x)
    n = x.numel()
    if n:
        _kernel[(triton.cdiv(n, block),)](x, y, n, x.shape[-1], backward, block)
    return y


class _RotateHalf(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, block):
        ctx.block = block
        return _launch(x, block, False)

    @staticmethod
    def backward(ctx, grad):
        return _launch(grad, ctx.block, True), None


def _in_blocks(x, *, block):
    return _RotateHalf.apply(x, block)


rotate_half = functools.partial(_in_blocks, block=512)
