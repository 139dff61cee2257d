"""libdevice's cos, sin and fma in the kernel, which takes each angle once for a pair."""

import torch
import triton
import triton.language as tl
from triton.language.extra import libdevice


@triton.jit
def _kernel(x, y, freqs, rows, d, HALF: tl.constexpr, BACK: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    col = tl.arange(0, BLOCK)
    keep = col < HALF
    angle = tl.load(freqs + row // rows * 2 * HALF + col, mask=keep, other=0.0)
    c, w = libdevice.cos(angle), libdevice.sin(angle)
    if BACK:
        w = -w
    x += row * d + col
    y += row * d + col
    a = tl.load(x, mask=keep).to(tl.float32)
    b = tl.load(x + HALF, mask=keep).to(tl.float32)
    tl.store(y, libdevice.fma(a, c, -b * w), mask=keep)
    tl.store(y + HALF, libdevice.fma(b, c, a * w), mask=keep)


def _launch(x, freqs, back):
    x = x.contiguous()
    y = x.clone()
    s, b, h, d = x.shape
    if x.numel():
        half = freqs.shape[-1] // 2
        block = triton.next_power_of_2(half)
        _kernel[(s * b * h,)](x, y, freqs, b * h, d, half, back, block)
    return y


class _Rope(torch.autograd.Function):
    @staticmethod
    def forward(ctx, t, freqs):
        ctx.save_for_backward(freqs)
        return _launch(t, freqs, False)

    @staticmethod
    def backward(ctx, grad):
        return _launch(grad, *ctx.saved_tensors, True), None


def rope(t, freqs):
    first, second = freqs.chunk(2, -1)
    if not torch.equal(first, second):
        raise NotImplementedError("angles that differ within a pair")
    return _Rope.apply(t, freqs.contiguous())
