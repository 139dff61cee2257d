"""The second half comes from the second half alone; the gradient is right.

Expected: forward=INCORRECT_NUMERICAL backward=PASSED
Cause: the second half is turned by itself
"""

import torch
import triton
import triton.language as tl


@triton.jit
def _kernel(x, freqs, y, rows, d, half, BACKWARD: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    col = tl.arange(0, BLOCK)
    mask = col < half
    x += row * d + col
    y += row * d + col
    freqs += row // rows * half * 2 + col
    f1 = tl.load(freqs, mask)
    f2 = tl.load(freqs + half, mask)
    x1 = tl.load(x, mask).to(tl.float32)
    x2 = tl.load(x + half, mask).to(tl.float32)
    if BACKWARD:
        y1 = x1 * tl.cos(f1) + x2 * tl.sin(f2)
        y2 = x2 * tl.cos(f2) - x1 * tl.sin(f1)
    else:
        y1 = x1 * tl.cos(f1) - x2 * tl.sin(f1)
        y2 = x2 * tl.cos(f2) + x2 * tl.sin(f2)
    tl.store(y, y1, mask)
    tl.store(y + half, y2, mask)


def _launch(x, freqs, backward):
    x, freqs = x.contiguous(), freqs.contiguous()
    y = x.clone()  # holds the features that pass through
    s, b, h, d = x.shape
    if x.numel() and freqs.numel():
        half = freqs.shape[-1] // 2
        block = triton.next_power_of_2(half)
        _kernel[(s * b * h,)](x, freqs, y, b * h, d, half, backward, block)
    return y


class _Rope(torch.autograd.Function):
    @staticmethod
    def forward(ctx, t, freqs):
        ctx.save_for_backward(freqs)
        return _launch(t, freqs, False)

    @staticmethod
    def backward(ctx, grad):
        (freqs,) = ctx.saved_tensors
        return _launch(grad, freqs, True), None


def rope(t, freqs):
    return _Rope.apply(t, freqs)
