"""Only the first half of freqs is read, as if the second were the same.

Expected: forward=INCORRECT_NUMERICAL backward=INCORRECT_NUMERICAL
Cause: the angles of the first half serve both halves
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
    angle = tl.load(freqs, mask)
    cos, sin = tl.cos(angle), tl.sin(angle)
    x1 = tl.load(x, mask).to(tl.float32)
    x2 = tl.load(x + half, mask).to(tl.float32)
    if BACKWARD:
        sin = -sin
    tl.store(y, x1 * cos - x2 * sin, mask)
    tl.store(y + half, x2 * cos + x1 * sin, mask)


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
