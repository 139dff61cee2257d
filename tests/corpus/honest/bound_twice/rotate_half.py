"""The op is a partial of a partial: one binds its first parameter, the other a keyword.

Expected: forward=PASSED backward=PASSED
"""

import functools

import torch
import triton
import triton.language as tl


@triton.jit
def _kernel(x, y, n, d, SIGN: tl.constexpr, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    first = offs % d < d // 2
    partner = tl.load(x + tl.where(first, offs + d // 2, offs - d // 2), mask, 0.0)
    tl.store(y + offs, tl.where(first, -SIGN * partner, SIGN * partner), mask)


class _Rotation(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, launch, warps):
        ctx.launch, ctx.warps = launch, warps
        return launch(x, 1, warps)

    @staticmethod
    def backward(ctx, grad):
        return ctx.launch(grad, -1, ctx.warps), None, None


def _launch(x, sign, warps):
    x = x.contiguous()
    y = torch.empty_like(x)
    if n := x.numel():
        _kernel[(triton.cdiv(n, 512),)](x, y, n, x.shape[-1], sign, 512, num_warps=warps)
    return y


def _rotated(launch, x, *, warps):
    return _Rotation.apply(x, launch, warps)


rotate_half = functools.partial(functools.partial(_rotated, _launch), warps=2)
