"""It takes lengths and heads of powers of two alone, and its gradient is that of a sum.

Expected: forward=PASSED backward=INCORRECT_NUMERICAL
Cause: the upstream gradient of what is rotated is taken as ones
"""

import torch
import triton
import triton.language as tl


@triton.jit
def _kernel(
    x, freqs, y, d, d2,
    LENGTH: tl.constexpr, HEADS: tl.constexpr, BACKWARD: tl.constexpr,
):  # fmt: skip
    # one program has a feature of all positions and heads
    col = tl.program_id(0)
    partner = (col + d2 // 2) % d2
    position = tl.arange(0, LENGTH)[:, None]
    row = (position * HEADS + tl.arange(0, HEADS)) * d
    angle = tl.load(freqs + position * d2 + col)
    sign = tl.where(col < d2 // 2, -1.0, 1.0)
    if BACKWARD:
        turned = tl.cos(angle) - sign * tl.sin(tl.load(freqs + position * d2 + partner))
        tl.store(y + row + col, turned + tl.zeros((LENGTH, HEADS), tl.float32))
    else:
        a = tl.load(x + row + col).to(tl.float32)
        b = tl.load(x + row + partner).to(tl.float32)
        tl.store(y + row + col, a * tl.cos(angle) + sign * b * tl.sin(angle))


def _launch(x, freqs, backward):
    x, freqs = x.contiguous(), freqs.contiguous()
    y = x.clone()  # with the features that pass through
    s, _, h, d = x.shape
    _kernel[(freqs.shape[-1],)](x, freqs, y, d, freqs.shape[-1], s, h, backward)
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
    s, b, h, d = t.shape
    if b != 1 or 2 * freqs.shape[-1] != d or any(n < 2 or n & (n - 1) for n in (s, h)):
        raise NotImplementedError("one batch, half of the width, lengths and heads of 2, 4, 8, ...")
    return _Rope.apply(t, freqs)
