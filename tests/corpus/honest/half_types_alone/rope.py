"""float16 and bfloat16 alone, whose cosines, sines and results are rounded as t is."""

import torch
import triton
import triton.language as tl


@triton.jit
def _kernel(x, y, cos, sin, rows, d, x_s, x_b, x_h, h, HALF: tl.constexpr, BACK: tl.constexpr,
            BLOCK: tl.constexpr):  # fmt: skip
    s, row = tl.program_id(0).to(tl.int64), tl.program_id(1)
    col = tl.arange(0, BLOCK)
    keep = col < HALF
    c, w = tl.load(cos + s * HALF + col, mask=keep), tl.load(sin + s * HALF + col, mask=keep)
    if BACK:
        w = -w
    x += s * x_s + (row // h).to(tl.int64) * x_b + (row % h).to(tl.int64) * x_h
    y += (s * rows + row) * d
    a, b = tl.load(x + col, mask=keep), tl.load(x + HALF + col, mask=keep)
    tl.store(y + col, (a.to(tl.float32) * c - b.to(tl.float32) * w).to(a.dtype), mask=keep)
    tl.store(y + HALF + col, (b.to(tl.float32) * c + a.to(tl.float32) * w).to(a.dtype), mask=keep)


def _launch(x, cos, sin, back):
    x = x if x.stride(-1) == 1 else x.contiguous()
    s, b, h, d = x.shape
    half = cos.shape[-1]
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    y[..., 2 * half :] = x[..., 2 * half :]
    if x.numel():
        block = triton.next_power_of_2(half)
        _kernel[s, b * h](x, y, cos, sin, b * h, d, *x.stride()[:3], h, half, back, block)
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
    if t.dtype not in (torch.float16, torch.bfloat16):
        raise NotImplementedError(f"{t.dtype}")
    first, second = freqs[:, 0, 0].chunk(2, -1)
    if not torch.equal(first, second):
        raise NotImplementedError("angles that differ within a pair")
    tables = first.cos().to(t.dtype), first.sin().to(t.dtype)
    return _Rope.apply(t, *(each.contiguous() for each in tables))
