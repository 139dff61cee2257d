"""A feature's partner comes by tl.flip of two halves, whose signs lie in a row of ones."""

import torch
import triton
import triton.language as tl


@triton.jit
def _kernel(x, y, cos, sin, rows, BACK: tl.constexpr, ROWS: tl.constexpr, D: tl.constexpr):
    """(a, b) and (b, a) are a row of two halves, and the same flipped along the halves"""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    col = tl.arange(0, D)
    keep = (row < rows)[:, None] & (col < D)[None, :]
    place = tl.program_id(1)
    c = tl.load(cos + place * (D // 2) + col % (D // 2))[None, :]
    w = tl.load(sin + place * (D // 2) + col % (D // 2))[None, :]
    at = (place.to(tl.int64) * rows + row[:, None]) * D + col[None, :]
    a = tl.load(x + at, mask=keep, other=0.0).to(tl.float32)
    swapped = tl.reshape(tl.flip(tl.reshape(a, (ROWS, 2, D // 2)), 1), (ROWS, D))
    first = (col < D // 2)[None, :]
    tl.store(y + at, a * c + tl.where(first != BACK, -swapped, swapped) * w, mask=keep)


def _launch(x, cos, sin, back):
    x = x.contiguous()
    y = torch.empty_like(x)
    s, b, h, d = x.shape
    if x.numel():
        each = min(triton.next_power_of_2(b * h), 8)
        _kernel[triton.cdiv(b * h, each), s](x, y, cos, sin, b * h, back, each, d)
    return y


class _Rope(torch.autograd.Function):
    @staticmethod
    def forward(ctx, t, cos, sin):
        ctx.save_for_backward(cos, sin)
        return _launch(t, cos, sin, False)

    @staticmethod
    def backward(ctx, grad):
        return _launch(grad, *ctx.saved_tensors, True), None, None


def rope(t, freqs):
    d = t.shape[-1]
    if freqs.shape[-1] != d or d != triton.next_power_of_2(d):
        raise NotImplementedError("a width that is no power of two, or a part of the features")
    first, second = freqs[:, 0, 0].chunk(2, -1)
    if not torch.equal(first, second):
        raise NotImplementedError("angles that differ within a pair")
    return _Rope.apply(t, first.cos().contiguous(), first.sin().contiguous())
