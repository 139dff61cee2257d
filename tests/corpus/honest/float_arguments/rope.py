"""Scales are float arguments, which the kernel casts and whose products it asserts the type of."""

import torch
import triton
import triton.language as tl


@triton.jit
def _kernel(x, y, freqs, rows, d, d2, stretch, side, BLOCK: tl.constexpr):
    """`stretch` divides positions, as a context that was made longer; `side` turns back"""
    row = tl.program_id(0).to(tl.int64)
    col = tl.arange(0, BLOCK)
    inside, turned, half = col < d, col < d2, d2 // 2
    partner = tl.where(col < half, col + half, col - half)
    angle = tl.load(freqs + row // rows * d2 + col, mask=turned, other=0.0)
    angle = angle / stretch.to(tl.float32)
    a = tl.load(x + row * d + col, mask=inside).to(tl.float32)
    b = tl.load(x + row * d + partner, mask=turned, other=0.0).to(tl.float32)
    tl.static_assert((b * side).dtype == tl.float32)
    b = tl.where(col < half, -b * side, b * side)
    tl.store(y + row * d + col, a * tl.cos(angle) + b * tl.sin(angle), mask=inside)


def _launch(x, freqs, side):
    x = x.contiguous()
    y = torch.empty_like(x)
    s, b, h, d = x.shape
    if x.numel():
        block = triton.next_power_of_2(d)
        _kernel[(s * b * h,)](x, y, freqs, b * h, d, freqs.shape[-1], 1.0, side, block)
    return y


class _Rope(torch.autograd.Function):
    @staticmethod
    def forward(ctx, t, freqs):
        ctx.save_for_backward(freqs)
        return _launch(t, freqs, 1.0)

    @staticmethod
    def backward(ctx, grad):
        return _launch(grad, *ctx.saved_tensors, -1.0), None


def rope(t, freqs, *, tensor_format="sbhd"):
    if tensor_format != "sbhd":
        raise NotImplementedError(tensor_format)
    first, second = freqs.chunk(2, -1)
    if not torch.equal(first, second):
        raise NotImplementedError("angles that differ within a pair")
    return _Rope.apply(t, freqs.contiguous())
