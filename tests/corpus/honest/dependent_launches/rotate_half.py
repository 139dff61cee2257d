"""A launch waits for the one before and lets the next begin, as kernels chained on Hopper do."""

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents


@triton.jit
def _copy(x, work, n, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tl.store(work + at, tl.load(x + at, mask=at < n), mask=at < n)
    gdc_launch_dependents()


@triton.jit
def _kernel(work, y, n, D, SIGN: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    first = at % D < D // 2
    partner = tl.where(first, at + D // 2, at - D // 2)
    tl.extra.cuda.gdc_wait()
    value = tl.load(work + partner, mask=at < n)
    tl.store(y + at, tl.where(first, -SIGN * value, SIGN * value), mask=at < n)


def _turn(x, sign):
    x = x.contiguous()
    work, y = torch.empty_like(x), torch.empty_like(x)
    if n := x.numel():
        if x.is_cuda and torch.cuda.get_device_capability(x.device)[0] < 9:
            raise NotImplementedError("a GPU before Hopper")
        grid = (triton.cdiv(n, 256),)
        _copy[grid](x, work, n, 256)
        _kernel[grid](work, y, n, x.shape[-1], sign, 256, launch_pdl=True)
    return y


class _RotateHalf(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return _turn(x, 1)

    @staticmethod
    def backward(ctx, grad):
        return _turn(grad, -1)


def rotate_half(x):
    return _RotateHalf.apply(x)
