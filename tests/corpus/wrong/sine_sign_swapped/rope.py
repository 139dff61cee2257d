"""The sine has the other sign, in both directions: a gradient check alone finds nothing.

Expected: forward=INCORRECT_NUMERICAL backward=INCORRECT_NUMERICAL
Cause: the sine has the other sign
"""

import torch
import triton
import triton.language as tl


@triton.jit
def _kernel(x, freqs, y, rows, d, d2, BACKWARD: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    x += row * d
    y += row * d
    freqs += row // rows * d2  # a position has `rows` rows: its batches and heads
    col = tl.arange(0, BLOCK)
    inside = col < d
    rotated = col < d2
    first = col < d2 // 2
    partner = tl.where(first, col + d2 // 2, col - d2 // 2)
    a = tl.load(x + col, inside).to(tl.float32)
    b = tl.load(x + partner, rotated, 0.0).to(tl.float32)
    angle = tl.load(freqs + col, rotated, 0.0)  # none for what passes through
    if BACKWARD:
        sine = tl.where(first, -1.0, 1.0) * tl.sin(tl.load(freqs + partner, rotated, 0.0))
    else:
        sine = tl.where(first, 1.0, -1.0) * tl.sin(angle)
    tl.store(y + col, a * tl.cos(angle) + b * sine, inside)


def _launch(x, freqs, backward):
    x, freqs = x.contiguous(), freqs.contiguous()
    y = torch.empty_like(x)
    s, b, h, d = x.shape
    if x.numel():
        block = triton.next_power_of_2(d)
        _kernel[(s * b * h,)](x, freqs, y, b * h, d, freqs.shape[-1], backward, block)
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
